//! From rows to Arrow arrays.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Float32Array, Float64Array, ListArray, PrimitiveArray, StringArray, StructArray,
    TimestampMicrosecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{ArrowPrimitiveType, Field, Float32Type, Int32Type, UInt8Type, UInt32Type};
use arrow::record_batch::RecordBatch;
use trace_envs::{Check, Split};

use super::role_name;
use crate::rows::{RowError, SamplingParams, SegmentRow, TokenColumns, TokenSpan, TurnRow, UpdateRow};
use crate::schema::{
    TRAJECTORY_VERSION, UPDATES_VERSION, check_fields, sampling_fields, span_fields, trajectory_schema, turn_fields,
    updates_schema,
};

/// Rows as one batch of `trajectory/1`.
///
/// # Errors
/// The first row that [`SegmentRow::validate`] refuses; no batch is made then.
pub fn trajectory_batch(rows: &[SegmentRow]) -> Result<RecordBatch, RowError> {
    for row in rows {
        row.validate()?;
    }
    let text =
        |get: fn(&SegmentRow) -> &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(get))) };
    let maybe_text =
        |get: fn(&SegmentRow) -> Option<&str>| -> ArrayRef { Arc::new(rows.iter().map(get).collect::<StringArray>()) };
    let u32s =
        |get: fn(&SegmentRow) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(rows.iter().map(get))) };
    let u16s =
        |get: fn(&SegmentRow) -> u16| -> ArrayRef { Arc::new(UInt16Array::from_iter_values(rows.iter().map(get))) };
    let u64s =
        |get: fn(&SegmentRow) -> u64| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(rows.iter().map(get))) };
    let maybe_f32 =
        |get: fn(&SegmentRow) -> Option<f32>| -> ArrayRef { Arc::new(rows.iter().map(get).collect::<Float32Array>()) };
    let columns: Vec<ArrayRef> = vec![
        text(|r| &r.id),
        text(|r| &r.run),
        text(|r| &r.source),
        text(|r| &r.environment),
        maybe_text(|r| r.capability.as_deref()),
        maybe_text(|r| r.domain.as_deref()),
        text(|r| &r.task),
        u32s(|r| r.trial),
        maybe_text(|r| r.split.map(Split::name)),
        u64s(|r| r.seed),
        u32s(|r| r.level),
        u64s(|r| r.group),
        u16s(|r| r.rollout),
        u16s(|r| r.segment),
        Arc::new(UInt8Array::from_iter_values(rows.iter().map(|r| r.attempt))),
        u32s(|r| r.iteration),
        maybe_text(|r| r.adapter.as_deref()),
        text(|r| r.status.name()),
        maybe_text(|r| r.error.as_deref()),
        maybe_f32(|r| r.reward),
        maybe_f32(|r| r.advantage),
        sampling_array(rows),
        span_array(rows.iter().map(|r| r.hint_span).collect()),
        token_list(
            rows,
            false,
            |c, out: &mut Vec<Option<i32>>| out.extend(c.tokens.iter().map(|&t| Some(t))),
            ints::<Int32Type>,
        ),
        token_list(
            rows,
            false,
            |c, out: &mut Vec<Option<bool>>| out.extend(c.action_mask.iter().map(|&m| Some(m))),
            bools,
        ),
        token_list(rows, true, |c, out: &mut Vec<Option<f32>>| out.extend(&c.logprobs), ints::<Float32Type>),
        token_list(rows, true, |c, out: &mut Vec<Option<u32>>| out.extend(&c.versions), ints::<UInt32Type>),
        slots_array(rows),
        turns_array(rows),
        checks_array(rows),
        Arc::new(
            TimestampMicrosecondArray::from_iter_values(rows.iter().map(|r| r.started_at_us)).with_timezone("UTC"),
        ),
        u64s(|r| r.wall_ms),
    ];
    RecordBatch::try_new(trajectory_schema(), columns)
        .map_err(|e| RowError::Schema { expected: TRAJECTORY_VERSION, reason: e.to_string() })
}

/// Rows as one batch of `updates/1`.
///
/// # Errors
/// A row that is used and has a reason why not, or neither.
pub fn updates_batch(rows: &[UpdateRow]) -> Result<RecordBatch, RowError> {
    if let Some(row) = rows.iter().find(|r| r.used == r.reason.is_some()) {
        let reason = format!("used = {} with reason {:?}", row.used, row.reason);
        return Err(RowError::Refused { id: row.row.clone(), reason });
    }
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.row))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.learner))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.step))),
        Arc::new(rows.iter().map(|r| r.staleness).collect::<UInt32Array>()),
        Arc::new(rows.iter().map(|r| Some(r.used)).collect::<BooleanArray>()),
        Arc::new(rows.iter().map(|r| r.reason.as_deref()).collect::<StringArray>()),
    ];
    RecordBatch::try_new(updates_schema(), columns)
        .map_err(|e| RowError::Schema { expected: UPDATES_VERSION, reason: e.to_string() })
}

fn ints<T: ArrowPrimitiveType>(values: Vec<Option<T::Native>>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter(values))
}

fn bools(values: Vec<Option<bool>>) -> ArrayRef {
    Arc::new(BooleanArray::from(values))
}

fn list_array(lengths: Vec<usize>, valid: Option<Vec<bool>>, items: ArrayRef, nullable_items: bool) -> ArrayRef {
    let field = Arc::new(Field::new_list_field(items.data_type().clone(), nullable_items));
    Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths), items, valid.map(NullBuffer::from)))
}

/// One list per row over its token columns; null where the row has none.
fn token_list<T>(
    rows: &[SegmentRow],
    nullable_items: bool,
    fill: impl Fn(&TokenColumns, &mut Vec<Option<T>>),
    array: impl Fn(Vec<Option<T>>) -> ArrayRef,
) -> ArrayRef {
    let mut values = Vec::new();
    let mut lengths = Vec::with_capacity(rows.len());
    for row in rows {
        let before = values.len();
        if let Some(columns) = &row.columns {
            fill(columns, &mut values);
        }
        lengths.push(values.len() - before);
    }
    let valid = rows.iter().map(|r| r.columns.is_some()).collect();
    list_array(lengths, Some(valid), array(values), nullable_items)
}

fn slots_array(rows: &[SegmentRow]) -> ArrayRef {
    let slots = |r: &'_ SegmentRow| r.columns.as_ref().and_then(|c| c.slots.clone());
    let lists: Vec<Option<Vec<Option<u8>>>> = rows.iter().map(slots).collect();
    let lengths = lists.iter().map(|l| l.as_ref().map_or(0, Vec::len)).collect();
    let valid = lists.iter().map(Option::is_some).collect();
    list_array(lengths, Some(valid), ints::<UInt8Type>(lists.into_iter().flatten().flatten().collect()), true)
}

fn sampling_array(rows: &[SegmentRow]) -> ArrayRef {
    let of = |get: fn(SamplingParams) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| get(r.sampling.unwrap_or_default()))))
    };
    let top_k = UInt32Array::from_iter_values(rows.iter().map(|r| r.sampling.unwrap_or_default().top_k));
    let valid: Vec<bool> = rows.iter().map(|r| r.sampling.is_some()).collect();
    let columns = vec![of(|s| s.temperature), of(|s| s.top_p), Arc::new(top_k) as ArrayRef];
    Arc::new(StructArray::new(sampling_fields(), columns, Some(valid.into())))
}

fn span_array(spans: Vec<Option<TokenSpan>>) -> ArrayRef {
    let bound = |get: fn(&TokenSpan) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(spans.iter().map(|s| s.as_ref().map_or(0, get))))
    };
    let columns = vec![bound(|s| s.start), bound(|s| s.end)];
    let valid: Vec<bool> = spans.iter().map(Option::is_some).collect();
    Arc::new(StructArray::new(span_fields(), columns, Some(valid.into())))
}

fn turns_array(rows: &[SegmentRow]) -> ArrayRef {
    let turns: Vec<&TurnRow> = rows.iter().flat_map(|r| &r.turns).collect();
    let calls = |t: &&TurnRow| match t.tool_calls.is_empty() {
        true => None,
        false => Some(serde_json::to_string(&t.tool_calls).expect("calls are plain JSON")),
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(turns.iter().map(|t| role_name(t.role)))),
        Arc::new(StringArray::from_iter_values(turns.iter().map(|t| &t.text))),
        Arc::new(turns.iter().map(calls).collect::<StringArray>()),
        Arc::new(turns.iter().map(|t| t.span.map(|s| s.start)).collect::<UInt32Array>()),
        Arc::new(turns.iter().map(|t| t.span.map(|s| s.end)).collect::<UInt32Array>()),
        Arc::new(turns.iter().map(|t| t.policy_ms).collect::<Float32Array>()),
        Arc::new(turns.iter().map(|t| t.env_ms).collect::<Float32Array>()),
        Arc::new(turns.iter().map(|t| t.finish_reason.as_deref()).collect::<StringArray>()),
    ];
    let items = Arc::new(StructArray::new(turn_fields(), columns, None));
    list_array(rows.iter().map(|r| r.turns.len()).collect(), None, items, false)
}

fn checks_array(rows: &[SegmentRow]) -> ArrayRef {
    let checks: Vec<&Check> = rows.iter().flat_map(|r| &r.checks).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(checks.iter().map(|c| &c.name))),
        Arc::new(Float64Array::from_iter_values(checks.iter().map(|c| c.score))),
        Arc::new(Float64Array::from_iter_values(checks.iter().map(|c| c.weight))),
        Arc::new(StringArray::from_iter_values(checks.iter().map(|c| &c.detail))),
    ];
    let items = Arc::new(StructArray::new(check_fields(), columns, None));
    list_array(rows.iter().map(|r| r.checks.len()).collect(), None, items, false)
}
