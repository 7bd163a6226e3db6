//! From Arrow arrays to rows.

use arrow::array::{Array, ArrayRef, AsArray, StructArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, FieldRef, Float32Type, Float64Type, Int32Type, Schema, TimestampMicrosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::record_batch::RecordBatch;
use trace_envs::{Call, Check, Split};

use super::parse_role;
use crate::rows::{RowError, SamplingParams, SegmentRow, Status, TokenColumns, TokenSpan, TurnRow, UpdateRow};
use crate::schema::{TRAJECTORY_VERSION, UPDATES_VERSION, trajectory_schema, updates_schema};

/// The rows of a batch of `trajectory/1`.
///
/// # Errors
/// Where the batch has another schema, or a value outside of its column's set; a row that [`SegmentRow::validate`]
/// would refuse.
pub fn trajectory_rows(batch: &RecordBatch) -> Result<Vec<SegmentRow>, RowError> {
    let view = View::new(batch, &trajectory_schema(), TRAJECTORY_VERSION)?;
    (0..batch.num_rows()).map(|i| read_row(&view, i)).collect()
}

/// The rows of a batch of `updates/1`.
///
/// # Errors
/// Where the batch has another schema.
pub fn updates_rows(batch: &RecordBatch) -> Result<Vec<UpdateRow>, RowError> {
    let view = View::new(batch, &updates_schema(), UPDATES_VERSION)?;
    Ok((0..batch.num_rows())
        .map(|i| UpdateRow {
            row: view.text("row", i),
            learner: view.text("learner", i),
            step: view.number::<UInt64Type>("step", i).unwrap_or_default(),
            staleness: view.number::<UInt32Type>("staleness", i),
            used: view.column("used").as_boolean().value(i),
            reason: view.maybe_text("reason", i),
        })
        .collect())
}

/// A batch (or a struct within one) whose columns are known to have the expected types.
struct View<'a> {
    columns: Vec<(&'a str, &'a ArrayRef)>,
}

impl<'a> View<'a> {
    fn new(batch: &'a RecordBatch, expected: &Schema, version: &'static str) -> Result<Self, RowError> {
        let wrong = |reason: String| RowError::Schema { expected: version, reason };
        for field in expected.fields() {
            let (_, found) = batch
                .schema_ref()
                .column_with_name(field.name())
                .ok_or_else(|| wrong(format!("column {} is missing", field.name())))?;
            if !same_type(found.data_type(), field.data_type()) {
                return Err(wrong(format!(
                    "column {} is {}, not {}",
                    field.name(),
                    found.data_type(),
                    field.data_type()
                )));
            }
        }
        let names = batch.schema_ref().fields().iter().map(|f| f.name().as_str());
        Ok(Self { columns: names.zip(batch.columns()).collect() })
    }

    fn of_struct(array: &'a StructArray) -> Self {
        Self { columns: array.fields().iter().map(|f| f.name().as_str()).zip(array.columns()).collect() }
    }

    /// A column that the schema has.
    fn column(&self, name: &str) -> &'a ArrayRef {
        self.columns.iter().find(|(n, _)| *n == name).expect("checked against the schema").1
    }

    fn maybe_text(&self, name: &str, i: usize) -> Option<String> {
        let array = self.column(name).as_string::<i32>();
        array.is_valid(i).then(|| array.value(i).to_owned())
    }

    fn text(&self, name: &str, i: usize) -> String {
        self.maybe_text(name, i).unwrap_or_default()
    }

    fn number<T: ArrowPrimitiveType>(&self, name: &str, i: usize) -> Option<T::Native> {
        let array = self.column(name).as_primitive::<T>();
        array.is_valid(i).then(|| array.value(i))
    }

    fn list(&self, name: &str, i: usize) -> Option<ArrayRef> {
        let array = self.column(name).as_list::<i32>();
        array.is_valid(i).then(|| array.value(i))
    }

    fn numbers<T: ArrowPrimitiveType>(&self, name: &str, i: usize) -> Option<Vec<Option<T::Native>>> {
        self.list(name, i).map(|items| items.as_primitive::<T>().iter().collect())
    }
}

/// Types are the same where they differ in nothing but the metadata and nullability of nested fields.
fn same_type(a: &DataType, b: &DataType) -> bool {
    let same_field = |x: &FieldRef, y: &FieldRef| same_type(x.data_type(), y.data_type());
    match (a, b) {
        (DataType::List(x), DataType::List(y)) => same_field(x, y),
        (DataType::Struct(x), DataType::Struct(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| x.name() == y.name() && same_field(x, y))
        }
        _ => a == b,
    }
}

fn read_row(view: &View<'_>, i: usize) -> Result<SegmentRow, RowError> {
    let id = view.text("id", i);
    let refuse = |reason: String| RowError::Refused { id: id.clone(), reason };
    let split = match view.maybe_text("split", i) {
        Some(name) => {
            Some(Split::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| refuse(format!("split {name:?}")))?)
        }
        None => None,
    };
    let status = view.text("status", i);
    let row = SegmentRow {
        run: view.text("run", i),
        source: view.text("source", i),
        environment: view.text("environment", i),
        capability: view.maybe_text("capability", i),
        domain: view.maybe_text("domain", i),
        task: view.text("task", i),
        trial: view.number::<UInt32Type>("trial", i).unwrap_or_default(),
        split,
        seed: view.number::<UInt64Type>("seed", i).unwrap_or_default(),
        level: view.number::<UInt32Type>("level", i).unwrap_or_default(),
        group: view.number::<UInt64Type>("group", i).unwrap_or_default(),
        rollout: view.number::<UInt16Type>("rollout", i).unwrap_or_default(),
        segment: view.number::<UInt16Type>("segment", i).unwrap_or_default(),
        attempt: view.number::<UInt8Type>("attempt", i).unwrap_or_default(),
        iteration: view.number::<UInt32Type>("iteration", i).unwrap_or_default(),
        adapter: view.maybe_text("adapter", i),
        status: Status::parse(&status).ok_or_else(|| refuse(format!("status {status:?}")))?,
        error: view.maybe_text("error", i),
        reward: view.number::<Float32Type>("reward", i),
        advantage: view.number::<Float32Type>("advantage", i),
        sampling: read_sampling(view, i),
        hint_span: read_span(view, i),
        columns: read_columns(view, i).map_err(&refuse)?,
        turns: read_turns(view, i).map_err(&refuse)?,
        checks: read_checks(view, i),
        started_at_us: view.number::<TimestampMicrosecondType>("started_at", i).unwrap_or_default(),
        wall_ms: view.number::<UInt64Type>("wall_ms", i).unwrap_or_default(),
        id,
    };
    row.validate()?;
    Ok(row)
}

fn read_sampling(view: &View<'_>, i: usize) -> Option<SamplingParams> {
    let array = view.column("sampling").as_struct();
    let inner = View::of_struct(array);
    array.is_valid(i).then(|| SamplingParams {
        temperature: inner.number::<Float64Type>("temperature", i).unwrap_or_default(),
        top_p: inner.number::<Float64Type>("top_p", i).unwrap_or_default(),
        top_k: inner.number::<UInt32Type>("top_k", i).unwrap_or_default(),
    })
}

fn read_span(view: &View<'_>, i: usize) -> Option<TokenSpan> {
    let array = view.column("hint_span").as_struct();
    let inner = View::of_struct(array);
    array.is_valid(i).then(|| TokenSpan {
        start: inner.number::<UInt32Type>("start", i).unwrap_or_default(),
        end: inner.number::<UInt32Type>("end", i).unwrap_or_default(),
    })
}

fn read_columns(view: &View<'_>, i: usize) -> Result<Option<TokenColumns>, String> {
    let tokens = view.numbers::<Int32Type>("tokens", i);
    let mask = view.list("action_mask", i);
    let logprobs = view.numbers::<Float32Type>("logprobs", i);
    let versions = view.numbers::<UInt32Type>("versions", i);
    match (tokens, mask, logprobs, versions) {
        (Some(tokens), Some(mask), Some(logprobs), Some(versions)) => Ok(Some(TokenColumns {
            tokens: tokens.into_iter().map(Option::unwrap_or_default).collect(),
            action_mask: mask.as_boolean().iter().map(Option::unwrap_or_default).collect(),
            logprobs,
            versions,
            slots: view.numbers::<UInt8Type>("slots", i),
        })),
        (None, None, None, None) => Ok(None),
        _ => Err("some of tokens, action_mask, logprobs and versions are null and some are not".into()),
    }
}

fn read_turns(view: &View<'_>, i: usize) -> Result<Vec<TurnRow>, String> {
    let Some(list) = view.list("turns", i) else { return Ok(Vec::new()) };
    let inner = View::of_struct(list.as_struct());
    let turn = |t: usize| -> Result<TurnRow, String> {
        let role = inner.text("role", t);
        let tool_calls: Vec<Call> = match inner.maybe_text("tool_calls", t) {
            Some(json) => serde_json::from_str(&json).map_err(|e| format!("tool_calls of turn {t}: {e}"))?,
            None => Vec::new(),
        };
        let bounds = (inner.number::<UInt32Type>("token_start", t), inner.number::<UInt32Type>("token_end", t));
        let span = match bounds {
            (Some(start), Some(end)) => Some(TokenSpan { start, end }),
            (None, None) => None,
            _ => return Err(format!("turn {t} has one bound of its token span")),
        };
        Ok(TurnRow {
            role: parse_role(&role).ok_or_else(|| format!("role {role:?} of turn {t}"))?,
            text: inner.text("text", t),
            tool_calls,
            span,
            policy_ms: inner.number::<Float32Type>("policy_ms", t),
            env_ms: inner.number::<Float32Type>("env_ms", t),
            finish_reason: inner.maybe_text("finish_reason", t),
        })
    };
    (0..list.len()).map(turn).collect()
}

fn read_checks(view: &View<'_>, i: usize) -> Vec<Check> {
    let Some(list) = view.list("checks", i) else { return Vec::new() };
    let inner = View::of_struct(list.as_struct());
    (0..list.len())
        .map(|c| Check {
            name: inner.text("name", c),
            score: inner.number::<Float64Type>("score", c).unwrap_or_default(),
            weight: inner.number::<Float64Type>("weight", c).unwrap_or_default(),
            detail: inner.text("detail", c),
        })
        .collect()
}
