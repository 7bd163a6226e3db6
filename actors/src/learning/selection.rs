//! Which rows of a batch a learner trains on, and why not the others. Plain data in, plain data out.

use std::collections::BTreeMap;

use trace_envs::Split;
use trace_policy::rows::TrainRow;

use super::report::LearnError;
use crate::rows::{SegmentRow, Status, TokenColumns, TokenSpan, UpdateRow};

/// A row that is trained on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) row: TrainRow,
    /// True where a hint was taken out: then its old log-probs are yet to be recomputed.
    pub(super) hinted: bool,
}

/// What is trained on, group by group, and what became of every row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Selection {
    pub(super) groups: Vec<Vec<Chosen>>,
    pub(super) constant_groups: usize,
    pub(super) updates: Vec<UpdateRow>,
}

impl Selection {
    pub(super) fn hinted_rows(&self) -> usize {
        self.groups.iter().flatten().filter(|chosen| chosen.hinted).count()
    }

    pub(super) fn rows_used(&self) -> usize {
        self.updates.iter().filter(|update| update.used).count()
    }
}

/// Chooses the rows of a batch that a learner at `version` trains on at `temperature`.
///
/// Whole groups come first: a group without a signal is left out as a whole. Within the others, rows without a verdict
/// are left out, and rows that saw a hint unless their advantage is positive; those lose the hint.
pub(super) fn select(
    rows: &[SegmentRow],
    learner: &str,
    version: u32,
    temperature: f64,
) -> Result<Selection, LearnError> {
    let mut by_group: BTreeMap<u64, Vec<&SegmentRow>> = BTreeMap::new();
    for row in rows {
        check_split(row)?;
        check_sampling(row, temperature)?;
        by_group.entry(row.group).or_default().push(row);
    }
    let mut selection = Selection { groups: Vec::new(), constant_groups: 0, updates: Vec::new() };
    for group in by_group.into_values() {
        let constant = is_constant(&group);
        selection.constant_groups += usize::from(constant);
        let mut chosen = Vec::new();
        for row in group {
            let choice = if constant { Err("constant group".to_owned()) } else { choose(row) };
            let oldest = row.columns.as_ref().and_then(TokenColumns::oldest_version);
            selection.updates.push(UpdateRow {
                row: row.id.clone(),
                learner: learner.to_owned(),
                step: u64::from(version) + 1,
                staleness: oldest.map(|oldest| version.saturating_sub(oldest)),
                used: choice.is_ok(),
                reason: choice.as_ref().err().cloned(),
            });
            chosen.extend(choice);
        }
        if !chosen.is_empty() {
            selection.groups.push(chosen);
        }
    }
    Ok(selection)
}

/// Refuses a row whose seed is not for training, by its seed and by what it says itself.
pub(super) fn check_split(row: &SegmentRow) -> Result<(), LearnError> {
    let split = Split::of(row.seed);
    match (split, row.split) {
        (Split::Train, Some(Split::Train)) => Ok(()),
        (Split::Train, said) => Err(LearnError::Split {
            row: row.id.clone(),
            seed: row.seed,
            // A row that does not say what it is for is not for training.
            split: said.unwrap_or(Split::Test),
        }),
        (split, _) => Err(LearnError::Split { row: row.id.clone(), seed: row.seed, split }),
    }
}

fn check_sampling(row: &SegmentRow, temperature: f64) -> Result<(), LearnError> {
    match row.sampling {
        Some(s) if s.temperature == temperature && s.top_p == 1.0 && s.top_k == 0 => Ok(()),
        // A row without a verdict is not trained on however it was sampled.
        _ if !row.status.has_reward() => Ok(()),
        found => Err(LearnError::Sampling {
            row: row.id.clone(),
            found: found.map_or("unknown settings".to_owned(), |s| {
                format!("temperature {}, top_p {}, top_k {}", s.temperature, s.top_p, s.top_k)
            }),
            wanted: format!("temperature {temperature} over the whole vocabulary"),
        }),
    }
}

/// True where rows have advantages and all are 0.
fn is_constant(group: &[&SegmentRow]) -> bool {
    let mut advantages = group.iter().filter_map(|row| row.advantage).peekable();
    advantages.peek().is_some() && advantages.all(|a| a == 0.0)
}

fn choose(row: &SegmentRow) -> Result<Chosen, String> {
    if !row.status.has_reward() {
        return Err(reason_of(row.status).to_owned());
    }
    let Some(advantage) = row.advantage else {
        return Err("no other member of its group has a reward".to_owned());
    };
    let Some(columns) = row.columns.as_ref().filter(|c| c.action_mask.contains(&true)) else {
        return Err("no sampled token".to_owned());
    };
    match row.hint_span {
        None => Ok(Chosen { row: train_row(columns, advantage), hinted: false }),
        Some(_) if advantage <= 0.0 => Err("it saw a hint and was no better than its group".to_owned()),
        Some(span) => Ok(Chosen { row: train_row(&without_hint(columns, span), advantage), hinted: true }),
    }
}

fn reason_of(status: Status) -> &'static str {
    match status {
        Status::Completed | Status::Truncated => "",
        Status::EnvironmentFailed => "its environment failed",
        Status::PolicyFailed => "its policy failed",
        Status::Cancelled => "it was cancelled",
    }
}

fn train_row(columns: &TokenColumns, advantage: f32) -> TrainRow {
    TrainRow {
        tokens: columns.tokens.clone(),
        action_mask: columns.action_mask.clone(),
        old_logprobs: columns.logprobs.iter().map(|lp| lp.unwrap_or(f32::NAN)).collect(),
        advantage,
    }
}

/// The columns as if no hint had been given. The log-probs are still those that were sampled with it.
fn without_hint(columns: &TokenColumns, span: TokenSpan) -> TokenColumns {
    let hint = span.start as usize..span.end as usize;
    let mut out = columns.clone();
    out.tokens.drain(hint.clone());
    out.action_mask.drain(hint.clone());
    out.logprobs.drain(hint.clone());
    out.versions.drain(hint.clone());
    if let Some(slots) = &mut out.slots {
        slots.drain(hint);
    }
    out
}

/// A row as the scorer takes it, hint taken out; `None` where nothing was sampled.
pub(crate) fn scoring_row(row: &SegmentRow) -> Option<TrainRow> {
    let columns = row.columns.as_ref().filter(|c| c.action_mask.contains(&true))?;
    Some(match row.hint_span {
        None => train_row(columns, 0.0),
        Some(span) => train_row(&without_hint(columns, span), 0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::row;

    fn with_advantage(seed: u64, rollout: u16, advantage: f32) -> SegmentRow {
        SegmentRow { advantage: Some(advantage), ..row(seed, rollout, 0.5) }
    }

    fn selected(rows: &[SegmentRow]) -> Selection {
        select(rows, "counting", 2, 1.0).unwrap()
    }

    fn reasons(selection: &Selection) -> Vec<Option<&str>> {
        selection.updates.iter().map(|u| u.reason.as_deref()).collect()
    }

    #[test]
    fn rows_of_informative_groups_are_used_as_they_were_sampled() {
        let selection = selected(&[with_advantage(3, 0, 1.0), with_advantage(3, 1, -1.0)]);
        assert_eq!(reasons(&selection), [None, None]);
        let chosen = &selection.groups[0][0];
        assert_eq!(chosen.row.tokens, [10, 11, 12, 20, 21, 30, 22]);
        assert_eq!(chosen.row.action_mask, [false, false, false, true, true, false, true]);
        assert_eq!((chosen.row.old_logprobs[3], chosen.row.old_logprobs[6]), (-0.25, -0.125));
        assert!(chosen.row.old_logprobs[0].is_nan(), "nothing stands for what was not sampled");
        assert_eq!(chosen.row.fault(), None);
        let update = &selection.updates[0];
        assert_eq!((update.step, update.staleness), (3, Some(2)), "its oldest token is of version 0");
    }

    #[test]
    fn a_group_without_a_signal_is_left_out_as_a_whole_and_counted() {
        let selection = selected(&[with_advantage(3, 0, 0.0), with_advantage(3, 1, 0.0), with_advantage(6, 0, 1.0)]);
        assert_eq!(reasons(&selection), [Some("constant group"), Some("constant group"), None]);
        assert_eq!((selection.groups.len(), selection.constant_groups), (1, 1));
    }

    #[test]
    fn a_row_at_its_groups_mean_stays_with_its_group() {
        let selection = selected(&[with_advantage(3, 0, 1.0), with_advantage(3, 1, 0.0), with_advantage(3, 2, -1.0)]);
        assert_eq!(selection.groups[0].len(), 3);
    }

    #[test]
    fn a_failed_or_lone_row_is_not_trained_on_and_says_why() {
        let mut failed = row(3, 1, 0.0);
        (failed.status, failed.error, failed.reward) = (Status::EnvironmentFailed, Some("gone".into()), None);
        let selection = selected(&[with_advantage(3, 0, 1.0), failed, row(6, 0, 1.0)]);
        let lone = Some("no other member of its group has a reward");
        assert_eq!(reasons(&selection), [None, Some("its environment failed"), lone]);
    }

    #[test]
    fn a_dev_or_test_seed_is_refused_whatever_the_row_says() {
        for seed in [Split::Dev.seed(4), Split::Test.seed(4)] {
            let rows = [with_advantage(3, 0, 1.0), with_advantage(seed, 0, 1.0)];
            let message = select(&rows, "counting", 0, 1.0).unwrap_err().to_string();
            assert!(message.contains(Split::of(seed).name()) && message.contains(&seed.to_string()), "{message}");
            let lying = SegmentRow { split: Some(Split::Train), ..with_advantage(seed, 0, 1.0) };
            assert!(matches!(select(&[lying], "counting", 0, 1.0), Err(LearnError::Split { .. })));
        }
        let imported = SegmentRow { split: None, ..with_advantage(3, 0, 1.0) };
        assert!(matches!(select(&[imported], "counting", 0, 1.0), Err(LearnError::Split { .. })));
    }

    #[test]
    fn an_importance_ratio_is_taken_only_between_like_distributions() {
        use crate::rows::SamplingParams;
        let sampled = |temperature, top_p, top_k| SegmentRow {
            sampling: Some(SamplingParams { temperature, top_p, top_k }),
            ..with_advantage(3, 0, 1.0)
        };
        assert!(select(&[sampled(0.5, 1.0, 0)], "counting", 0, 0.5).is_ok());
        for row in [sampled(0.5, 1.0, 0), sampled(1.0, 0.9, 0), sampled(1.0, 1.0, 40), sampled(0.0, 1.0, 0)] {
            assert!(matches!(select(&[row], "counting", 0, 1.0), Err(LearnError::Sampling { .. })));
        }
    }

    #[test]
    fn a_hinted_row_loses_its_hint_and_is_trained_only_where_it_was_better() {
        let hinted = |rollout, advantage| SegmentRow {
            hint_span: Some(TokenSpan { start: 1, end: 3 }),
            ..with_advantage(3, rollout, advantage)
        };
        let selection = selected(&[hinted(0, 1.0), hinted(1, -0.5), with_advantage(3, 2, -0.5)]);
        let why = Some("it saw a hint and was no better than its group");
        assert_eq!(reasons(&selection), [None, why, None]);
        let chosen = &selection.groups[0][0];
        assert!(chosen.hinted && !selection.groups[0][1].hinted);
        assert_eq!(chosen.row.tokens, [10, 20, 21, 30, 22]);
        assert_eq!(chosen.row.action_mask, [false, true, true, false, true]);
        assert_eq!(selection.hinted_rows(), 1);
    }
}
