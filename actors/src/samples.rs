//! Rows that tests start from.

use trace_envs::{Call, Check, Role, Split, ToolCall};

use crate::rows::{SamplingParams, SegmentRow, Status, TokenColumns, TokenSpan, TurnRow};

/// A whole row of two assistant turns: prompt 10 11 12, sampled 20 21, observed 30, sampled 22.
pub(crate) fn row(seed: u64, rollout: u16, reward: f32) -> SegmentRow {
    let mut columns = TokenColumns::default();
    columns.extend_given(&[10, 11, 12]);
    columns.extend_sampled(&[20, 21], &[-0.25, -1.5], None, 0).unwrap();
    columns.extend_given(&[30]);
    columns.extend_sampled(&[22], &[-0.125], None, 1).unwrap();
    let turn = |role, text: &str, start, end| TurnRow {
        role,
        text: text.into(),
        tool_calls: Vec::new(),
        span: Some(TokenSpan { start, end }),
        policy_ms: None,
        env_ms: None,
        finish_reason: None,
    };
    let mut calling = turn(Role::Assistant, "", 3, 5);
    calling.tool_calls = vec![
        Call::Tool(ToolCall {
            name: "find".into(),
            arguments: serde_json::from_str(r#"{"item":"red lamp","n":2}"#).unwrap(),
        }),
        Call::Malformed { raw: "{\"name\":".into(), error: "the JSON ends early".into() },
    ];
    calling.policy_ms = Some(1.5);
    calling.env_ms = Some(0.25);
    calling.finish_reason = Some("stop".into());
    SegmentRow {
        id: format!("unit/g{seed}/r{rollout}/s0"),
        run: "run-a".into(),
        source: "trace".into(),
        environment: "desk".into(),
        capability: Some("counting".into()),
        domain: None,
        task: seed.to_string(),
        trial: 0,
        split: Some(Split::of(seed)),
        seed,
        level: 1,
        group: seed,
        rollout,
        segment: 0,
        attempt: 0,
        iteration: 3,
        adapter: None,
        status: Status::Completed,
        error: None,
        reward: Some(reward),
        advantage: None,
        sampling: Some(SamplingParams::default()),
        hint_span: None,
        columns: Some(columns),
        turns: vec![
            turn(Role::System, "be good", 0, 3),
            turn(Role::User, "hello", 0, 3),
            calling,
            turn(Role::Tool, "[]", 5, 6),
            turn(Role::Assistant, "done", 6, 7),
        ],
        checks: vec![Check { name: "found".into(), score: 1.0, weight: 1.0, detail: "1 of 1".into() }],
        started_at_us: 1_700_000_000_000_000,
        wall_ms: 12,
    }
}
