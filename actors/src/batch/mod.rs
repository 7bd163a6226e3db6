//! Rows to Arrow batches and back.

mod read;
mod write;

pub use read::{trajectory_rows, updates_rows};
pub use write::{trajectory_batch, updates_batch};

use trace_envs::Role;

fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

fn parse_role(name: &str) -> Option<Role> {
    [Role::System, Role::User, Role::Assistant, Role::Tool].into_iter().find(|r| role_name(*r) == name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rows::{Status, TokenColumns, TokenSpan, TurnRow, UpdateRow};
    use crate::samples::row;

    #[test]
    fn rows_survive_the_batch_whole() {
        let mut routed = row(2, 0, 0.0);
        routed.columns.as_mut().unwrap().slots = Some(vec![None, None, None, Some(1), Some(0), None, Some(4)]);
        routed.hint_span = Some(TokenSpan { start: 1, end: 3 });
        routed.adapter = Some("counting".into());
        routed.advantage = Some(-0.75);
        let mut failed = row(5, 1, 0.0);
        failed.status = Status::EnvironmentFailed;
        failed.error = Some("reset of seed 5 failed: no".into());
        (failed.reward, failed.columns, failed.turns, failed.checks) = (None, None, Vec::new(), Vec::new());
        let mut imported = row(7, 0, 1.0);
        (imported.columns, imported.sampling, imported.split) = (None, None, None);
        imported.turns.iter_mut().for_each(|t| t.span = None);
        let rows = vec![row(1, 0, 0.5), routed, failed, imported];
        let batch = trajectory_batch(&rows).unwrap();
        assert_eq!(trajectory_rows(&batch).unwrap(), rows);
        assert_eq!(trajectory_rows(&trajectory_batch(&[]).unwrap()).unwrap(), Vec::new());
    }

    #[test]
    fn a_batch_of_another_schema_is_refused_by_column() {
        let batch = trajectory_batch(&[row(1, 0, 0.5)]).unwrap();
        let missing = batch.project(&[0, 1, 2]).unwrap();
        let message = trajectory_rows(&missing).unwrap_err().to_string();
        assert!(message.contains("column environment is missing"), "{message}");
        let message = updates_rows(&batch).unwrap_err().to_string();
        assert!(message.contains("updates/1") && message.contains("column row"), "{message}");
    }

    #[test]
    fn an_update_is_used_or_says_why_not() {
        let used = UpdateRow {
            row: "u/g1/r0/s0".into(),
            learner: "counting".into(),
            step: 4,
            staleness: Some(1),
            used: true,
            reason: None,
        };
        let dropped = UpdateRow { used: false, reason: Some("constant group".into()), staleness: None, ..used.clone() };
        let rows = vec![used.clone(), dropped];
        assert_eq!(updates_rows(&updates_batch(&rows).unwrap()).unwrap(), rows);
        assert!(updates_batch(&[UpdateRow { used: false, ..used }]).is_err());
    }

    proptest! {
        #[test]
        fn any_tokens_survive_the_batch(
            turns in prop::collection::vec((prop::collection::vec(any::<i32>(), 0..5), prop::collection::vec((any::<i32>(), -20f32..0.0, any::<u8>()), 0..5)), 0..4),
            routed: bool,
        ) {
            let mut row = row(1, 0, 0.5);
            let mut columns = TokenColumns { slots: routed.then(Vec::new), ..TokenColumns::default() };
            row.turns.clear();
            for (version, (given, sampled)) in turns.iter().enumerate() {
                columns.extend_given(given);
                let start = columns.tokens.len() as u32;
                let ids: Vec<i32> = sampled.iter().map(|s| s.0).collect();
                let logprobs: Vec<f32> = sampled.iter().map(|s| s.1).collect();
                let slots: Vec<u8> = sampled.iter().map(|s| s.2).collect();
                columns.extend_sampled(&ids, &logprobs, routed.then_some(&slots), version as u32).unwrap();
                row.turns.push(TurnRow {
                    role: Role::Assistant, text: "x".into(), tool_calls: Vec::new(),
                    span: Some(TokenSpan { start, end: columns.tokens.len() as u32 }),
                    policy_ms: None, env_ms: None, finish_reason: None,
                });
            }
            row.columns = Some(columns);
            let rows = vec![row];
            prop_assert_eq!(trajectory_rows(&trajectory_batch(&rows).unwrap()).unwrap(), rows);
        }
    }
}
