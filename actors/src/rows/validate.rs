//! What makes a row acceptable.

use trace_envs::{Role, Split};

use super::{RowError, SegmentRow, TokenColumns, TokenSpan};

/// A log-softmax is at most 0 up to rounding.
pub(super) fn is_logprob(x: f32) -> bool {
    x.is_finite() && x <= 1e-3
}

impl SegmentRow {
    /// Refuses a row that contradicts itself.
    ///
    /// # Errors
    /// Names the row and the first rule that it breaks: ids, mask, log-probs and versions have one length; sampled
    /// tokens, and only they, have a finite log-prob and a version, and are exactly the assistant turns' spans; spans
    /// lie within the tokens; the hint holds no sampled token; a reward is finite and belongs to a status that has one;
    /// a failure says why; the split is the seed's.
    pub fn validate(&self) -> Result<(), RowError> {
        self.check_status()
            .and_then(|()| self.check_verdict())
            .and_then(|()| match &self.columns {
                Some(columns) => check_columns(columns).and_then(|()| self.check_spans(columns)),
                None => self.check_no_spans(),
            })
            .map_err(|reason| RowError::Refused { id: self.id.clone(), reason })
    }

    fn check_status(&self) -> Result<(), String> {
        let failed = !self.status.has_reward();
        if failed != self.error.is_some() {
            return Err(format!("status {} with error {:?}", self.status.name(), self.error));
        }
        if failed && self.reward.is_some() {
            return Err(format!("a reward with status {}", self.status.name()));
        }
        if !failed && self.reward.is_none() && self.columns.is_some() {
            return Err(format!("no reward with status {}", self.status.name()));
        }
        if self.advantage.is_some() && self.reward.is_none() {
            return Err("an advantage without a reward".into());
        }
        match self.split {
            Some(split) if split != Split::of(self.seed) => {
                Err(format!("split {} but seed {} is of {}", split.name(), self.seed, Split::of(self.seed).name()))
            }
            _ => Ok(()),
        }
    }

    fn check_verdict(&self) -> Result<(), String> {
        for (name, value) in [("reward", self.reward), ("advantage", self.advantage)] {
            if value.is_some_and(|x| !x.is_finite()) {
                return Err(format!("{name} {value:?} is not finite"));
            }
        }
        match self.checks.iter().find(|c| !c.score.is_finite() || !c.weight.is_finite()) {
            Some(check) => Err(format!("check {:?} is not finite", check.name)),
            None => Ok(()),
        }
    }

    fn check_no_spans(&self) -> Result<(), String> {
        if self.hint_span.is_some() || self.turns.iter().any(|t| t.span.is_some()) {
            return Err("token spans without tokens".into());
        }
        Ok(())
    }

    fn check_spans(&self, columns: &TokenColumns) -> Result<(), String> {
        let n = columns.tokens.len();
        let within = |span: TokenSpan| span.start <= span.end && span.end as usize <= n;
        let mut sampled = vec![false; n];
        let mut last = TokenSpan { start: 0, end: 0 };
        for (i, turn) in self.turns.iter().enumerate() {
            let Some(span) = turn.span else { continue };
            if !within(span) {
                return Err(format!("turn {i} spans {}..{} of {n} tokens", span.start, span.end));
            }
            // Messages appended together share their span, except for an assistant's, which stands alone.
            let shared = span == last && turn.role != Role::Assistant;
            if span.start < last.end && !shared {
                return Err(format!("turn {i} begins at token {} before the turn before it ends", span.start));
            }
            if turn.role == Role::Assistant {
                sampled[span.start as usize..span.end as usize].fill(true);
            }
            last = span;
        }
        if let Some(i) = (0..n).find(|&i| sampled[i] != columns.action_mask[i]) {
            return Err(format!(
                "token {i} is {} by the mask but {} by the turns",
                if columns.action_mask[i] { "sampled" } else { "given" },
                if sampled[i] { "an assistant's" } else { "not an assistant's" },
            ));
        }
        if let Some(span) = self.hint_span {
            if !within(span) {
                return Err(format!("the hint spans {}..{} of {n} tokens", span.start, span.end));
            }
            if columns.action_mask[span.start as usize..span.end as usize].iter().any(|&m| m) {
                return Err("the hint's span holds sampled tokens".into());
            }
        }
        Ok(())
    }
}

fn check_columns(columns: &TokenColumns) -> Result<(), String> {
    let n = columns.tokens.len();
    let lengths = [
        ("action_mask", columns.action_mask.len()),
        ("logprobs", columns.logprobs.len()),
        ("versions", columns.versions.len()),
        ("slots", columns.slots.as_ref().map_or(n, Vec::len)),
    ];
    if let Some((name, len)) = lengths.into_iter().find(|(_, len)| *len != n) {
        return Err(format!("{n} tokens but {len} entries in {name}"));
    }
    for i in 0..n {
        match (columns.action_mask[i], columns.logprobs[i], columns.versions[i]) {
            (true, Some(lp), Some(_)) if is_logprob(lp) => {}
            (true, Some(lp), Some(_)) => {
                return Err(format!("log-prob {lp} of token {i} is not a finite number <= 0"));
            }
            (true, None, _) => return Err(format!("sampled token {i} has no log-prob")),
            (true, _, None) => return Err(format!("sampled token {i} has no version")),
            (false, None, None) => {}
            (false, ..) => return Err(format!("token {i} was not sampled but has a log-prob or a version")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Status;
    use crate::samples::row;

    fn refusal(row: &SegmentRow) -> String {
        row.validate().expect_err("the row must be refused").to_string()
    }

    #[test]
    fn a_whole_row_is_accepted() {
        assert_eq!(row(7, 0, 0.5).validate(), Ok(()));
    }

    #[test]
    fn ids_mask_logprobs_and_versions_have_one_length_or_the_row_is_refused() {
        let shorten: [fn(&mut TokenColumns); 5] = [
            |c| c.tokens.truncate(1),
            |c| c.action_mask.truncate(1),
            |c| c.logprobs.truncate(1),
            |c| c.versions.truncate(1),
            |c| c.slots = Some(vec![None]),
        ];
        for cut in shorten {
            let mut row = row(1, 0, 1.0);
            cut(row.columns.as_mut().unwrap());
            let message = refusal(&row);
            assert!(message.contains("entries in"), "{message}");
        }
    }

    #[test]
    fn a_logprob_that_is_null_or_not_a_number_is_refused_never_stored_as_zero() {
        for bad in [None, Some(f32::NAN), Some(f32::NEG_INFINITY), Some(f32::INFINITY), Some(0.5)] {
            let mut row = row(1, 0, 1.0);
            let columns = row.columns.as_mut().unwrap();
            let i = columns.action_mask.iter().position(|&m| m).unwrap();
            columns.logprobs[i] = bad;
            let message = refusal(&row);
            assert!(message.contains("log-prob"), "{message}");
        }
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            let mut columns = TokenColumns::default();
            assert!(columns.extend_sampled(&[1, 2], &[-0.5, bad], None, 0).is_err());
            assert_eq!(columns, TokenColumns::default(), "a refused turn leaves nothing behind");
        }
    }

    #[test]
    fn the_mask_is_exactly_the_assistants_spans() {
        let mut with_tool_text = row(1, 0, 1.0);
        let columns = with_tool_text.columns.as_mut().unwrap();
        let given = columns.action_mask.iter().position(|&m| !m).unwrap();
        columns.action_mask[given] = true;
        columns.logprobs[given] = Some(-1.0);
        columns.versions[given] = Some(0);
        assert!(refusal(&with_tool_text).contains("by the mask"));

        let mut without_stop = row(1, 0, 1.0);
        let columns = without_stop.columns.as_mut().unwrap();
        let stop = columns.action_mask.iter().rposition(|&m| m).unwrap();
        columns.action_mask[stop] = false;
        columns.logprobs[stop] = None;
        columns.versions[stop] = None;
        assert!(refusal(&without_stop).contains("by the mask"));
    }

    #[test]
    fn only_completed_and_truncated_rollouts_have_a_reward_and_it_is_finite() {
        for status in Status::ALL {
            let mut row = row(1, 0, 1.0);
            row.status = status;
            row.error = (!status.has_reward()).then(|| "it broke".into());
            assert_eq!(row.validate().is_ok(), status.has_reward(), "{status:?}");
            row.reward = None;
            row.advantage = None;
            assert_eq!(row.validate().is_ok(), !status.has_reward(), "{status:?} without a reward");
        }
        let mut row = row(1, 0, f32::NAN);
        assert!(refusal(&row).contains("not finite"));
        row.reward = Some(f32::INFINITY);
        assert!(refusal(&row).contains("not finite"));
    }

    #[test]
    fn a_failure_says_why_and_a_split_is_the_seeds() {
        let mut failed = row(1, 0, 1.0);
        failed.status = Status::EnvironmentFailed;
        failed.reward = None;
        assert!(refusal(&failed).contains("with error None"));
        let mut moved = row(0, 0, 1.0);
        moved.split = Some(Split::Test);
        assert!(refusal(&moved).contains("is of train"));
    }

    #[test]
    fn a_hint_holds_no_sampled_token() {
        let mut row = row(1, 0, 1.0);
        row.hint_span = Some(TokenSpan { start: 1, end: 2 });
        assert_eq!(row.validate(), Ok(()));
        row.hint_span = Some(TokenSpan { start: 1, end: 5 });
        assert!(refusal(&row).contains("sampled"));
    }
}
