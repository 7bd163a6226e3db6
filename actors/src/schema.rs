//! The two tables that the runtime writes: `trajectory/1` and `updates/1`.
//!
//! One row of `trajectory/1` is one segment of one rollout, nearly always the whole rollout: a second segment begins
//! only where the chat template rewrote earlier turns, so that the tokens that follow have another prompt. One row of
//! `updates/1` says what a learner did with one row of `trajectory/1`.
//!
//! Every column has a line of documentation. It is part of the schema (field metadata `doc`), and each Parquet file
//! repeats all of them under `trace.columns`, so a file explains itself. A schema changes only with its version. The
//! phase of a run (`import`, `base`, ...) is not a column: it lives in the path, where partition-aware readers find it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

/// The version of the trajectory table, in the metadata of its schema under `trace.schema`.
pub const TRAJECTORY_VERSION: &str = "trajectory/1";

/// The version of the updates table, in the metadata of its schema under `trace.schema`.
pub const UPDATES_VERSION: &str = "updates/1";

/// Key of the schema's version in the metadata of a schema and of a Parquet file.
pub const VERSION_KEY: &str = "trace.schema";

/// Key of a column's documentation in the metadata of its field.
pub const DOC_KEY: &str = "doc";

/// The schema `trajectory/1`.
pub fn trajectory_schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(build_trajectory_schema);
    Arc::clone(&SCHEMA)
}

/// The schema `updates/1`.
pub fn updates_schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(build_updates_schema);
    Arc::clone(&SCHEMA)
}

/// The fields of one element of the column `turns`.
pub(crate) fn turn_fields() -> Fields {
    Fields::from(vec![
        column("role", DataType::Utf8, false, "system | user | assistant | tool."),
        column(
            "text",
            DataType::Utf8,
            false,
            "What was said, in full; for an assistant the text outside of its calls.",
        ),
        column(
            "tool_calls",
            DataType::Utf8,
            true,
            "JSON list of the turn's calls in the order written: {name, arguments}, or {raw, error} where one could not \
             be read.",
        ),
        column(
            "token_start",
            DataType::UInt32,
            true,
            "Index of the turn's first token in `tokens`; messages that were appended together share their span.",
        ),
        column("token_end", DataType::UInt32, true, "Index after the turn's last token, end-of-turn token included."),
        column("policy_ms", DataType::Float32, true, "Milliseconds the policy took for this turn."),
        column("env_ms", DataType::Float32, true, "Milliseconds the environment took to answer this turn."),
        column("finish_reason", DataType::Utf8, true, "Why sampling ended: stop | length | cancelled."),
    ])
}

/// The fields of one element of the column `checks`.
pub(crate) fn check_fields() -> Fields {
    Fields::from(vec![
        column("name", DataType::Utf8, false, "The check's name, stable across episodes."),
        column("score", DataType::Float64, false, "How well it was met, in [0, 1]."),
        column("weight", DataType::Float64, false, "Its weight in the reward; 0 marks a process check."),
        column("detail", DataType::Utf8, false, "What was expected and what was found."),
    ])
}

/// The fields of the column `sampling`.
pub(crate) fn sampling_fields() -> Fields {
    Fields::from(vec![
        column("temperature", DataType::Float64, false, "Softmax temperature; 0 is greedy."),
        column("top_p", DataType::Float64, false, "Nucleus mass; 1 keeps all tokens."),
        column("top_k", DataType::UInt32, false, "Most likely tokens kept; 0 keeps all."),
    ])
}

/// The fields of the column `hint_span`.
pub(crate) fn span_fields() -> Fields {
    Fields::from(vec![
        column("start", DataType::UInt32, false, "Index of the span's first token in `tokens`."),
        column("end", DataType::UInt32, false, "Index after the span's last token."),
    ])
}

fn build_trajectory_schema() -> SchemaRef {
    use DataType::{Boolean, Float32, UInt8, UInt16, UInt32, UInt64, Utf8};
    let columns = vec![
        column("id", Utf8, false, "The row: UNIT/gGROUP/rROLLOUT/sSEGMENT; unique in a run."),
        column("run", Utf8, false, "The run that sampled it."),
        column("source", Utf8, false, "Who made the row: `trace`, or the format it was imported from."),
        column("environment", Utf8, false, "The environment's name."),
        column("capability", Utf8, true, "The capability that the environment isolates; null for a target world."),
        column("domain", Utf8, true, "The part of the target world, where it has parts (tau2: airline, retail)."),
        column("task", Utf8, false, "The task within (environment, domain)."),
        column("trial", UInt32, false, "Counts the attempts at one task that are meant to be compared, from 0."),
        column("split", Utf8, true, "train | dev | test, as read from the seed; null for an imported row."),
        column("seed", UInt64, false, "The seed that made the task."),
        column("level", UInt32, false, "Level of difficulty asked for; 0 is the environment's own mix."),
        column("group", UInt64, false, "The group: rollouts of one seed that are compared with each other."),
        column("rollout", UInt16, false, "The rollout within its group, from 0."),
        column("segment", UInt16, false, "The segment within its rollout, from 0; more than one are rare."),
        column("attempt", UInt8, false, "How often the episode was begun anew after a failure of its environment."),
        column("iteration", UInt32, false, "The iteration of training (or round of a step) that asked for it."),
        column("adapter", Utf8, true, "The arm that acted: an adapter's or a composition's name; null is the base."),
        column("status", Utf8, false, "completed | truncated | environment_failed | policy_failed | cancelled."),
        column("error", Utf8, true, "Why it failed, in a sentence; set exactly where the status is a failure."),
        column("reward", Float32, true, "The verdict; only completed and truncated rollouts have one. Finite."),
        column(
            "advantage",
            Float32,
            true,
            "(reward - mean) / (std + eps) over the group's rewards; 0 in a constant group; null where there is none.",
        ),
        column("sampling", DataType::Struct(sampling_fields()), true, "How tokens were drawn; null for imports."),
        column(
            "hint_span",
            DataType::Struct(span_fields()),
            true,
            "The hint's tokens in the system message; the learner takes them out. Null where no hint was given.",
        ),
        column("tokens", list(DataType::Int32, false), true, "Token ids: prompt, sampled and observed, in order."),
        column("action_mask", list(Boolean, false), true, "True where the policy sampled the token, stop included."),
        column(
            "logprobs",
            list(Float32, true),
            true,
            "Log-probability of a sampled token under the distribution it was drawn from, in nats; null elsewhere.",
        ),
        column("versions", list(UInt32, true), true, "Adapter version that sampled the token; null where not sampled."),
        column(
            "slots",
            list(UInt8, true),
            true,
            "The slot most layers' gates chose for a sampled token, 0 = base; null without gates.",
        ),
        column(
            "turns",
            list(DataType::Struct(turn_fields()), false),
            false,
            "The conversation that is new in this segment.",
        ),
        column(
            "checks",
            list(DataType::Struct(check_fields()), false),
            false,
            "What the verdict is made of, and the process checks (weight 0).",
        ),
        column(
            "started_at",
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            false,
            "When the rollout began.",
        ),
        column("wall_ms", UInt64, false, "Milliseconds from the rollout's beginning to its verdict."),
    ];
    versioned(columns, TRAJECTORY_VERSION)
}

fn build_updates_schema() -> SchemaRef {
    let columns = vec![
        column("row", DataType::Utf8, false, "The id of the row of trajectory/1."),
        column("learner", DataType::Utf8, false, "The learner, named by its capability."),
        column("step", DataType::UInt64, false, "The version that this batch of the learner publishes, from 1."),
        column(
            "staleness",
            DataType::UInt32,
            true,
            "Learner version at the update minus the oldest version in the row's sampled tokens; null without any.",
        ),
        column("used", DataType::Boolean, false, "True where the row contributed to the gradient."),
        column("reason", DataType::Utf8, true, "Why it did not; null where it did."),
    ];
    versioned(columns, UPDATES_VERSION)
}

fn column(name: &str, data_type: DataType, nullable: bool, doc: &str) -> Field {
    Field::new(name, data_type, nullable).with_metadata(HashMap::from([(DOC_KEY.to_owned(), doc.to_owned())]))
}

fn list(item: DataType, nullable_items: bool) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(item, nullable_items)))
}

fn versioned(columns: Vec<Field>, version: &str) -> SchemaRef {
    let metadata = HashMap::from([(VERSION_KEY.to_owned(), version.to_owned())]);
    Arc::new(Schema::new(columns).with_metadata(metadata))
}

/// Every column of a schema with its documentation as one JSON object, columns in order; nested fields are named
/// `outer.inner`.
pub fn column_docs(schema: &Schema) -> serde_json::Map<String, serde_json::Value> {
    fn visit(prefix: &str, fields: &Fields, out: &mut serde_json::Map<String, serde_json::Value>) {
        for field in fields {
            let name = if prefix.is_empty() { field.name().clone() } else { format!("{prefix}.{}", field.name()) };
            let doc = field.metadata().get(DOC_KEY).cloned().unwrap_or_default();
            out.insert(name.clone(), doc.into());
            match field.data_type() {
                DataType::Struct(inner) => visit(&name, inner, out),
                DataType::List(item) => {
                    if let DataType::Struct(inner) = item.data_type() {
                        visit(&name, inner, out);
                    }
                }
                _ => {}
            }
        }
    }
    let mut out = serde_json::Map::new();
    visit("", schema.fields(), &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_trajectory_1_are_fixed() {
        let schema = trajectory_schema();
        let found: Vec<String> =
            schema.fields().iter().map(|f| format!("{}{}", f.name(), if f.is_nullable() { "?" } else { "" })).collect();
        let expected = "id run source environment capability? domain? task trial split? seed level group rollout segment \
                        attempt iteration adapter? status error? reward? advantage? sampling? hint_span? tokens? \
                        action_mask? logprobs? versions? slots? turns checks started_at wall_ms";
        assert_eq!(found, expected.split_whitespace().collect::<Vec<_>>());
        assert_eq!(schema.metadata()[VERSION_KEY], TRAJECTORY_VERSION);
        assert!(schema.field_with_name("phase").is_err(), "a partition key must not be a column");
    }

    #[test]
    fn every_column_has_a_line_of_documentation() {
        for schema in [trajectory_schema(), updates_schema()] {
            for (name, doc) in column_docs(&schema) {
                assert!(doc.as_str().is_some_and(|d| d.len() > 8), "{name} is undocumented");
            }
        }
        assert!(column_docs(&trajectory_schema()).contains_key("turns.token_start"));
    }
}
