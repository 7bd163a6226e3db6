//! Teacher-forced scoring: what a variant of the policy thinks of given tokens.

use tch::{Device, Kind, Tensor};

use crate::active::Active;
use crate::error::PolicyError;
use crate::model::Model;
use crate::rows::{TrainRow, plan};

/// Log-probs of each row's sampled tokens under `active`, in the row's order: as many as its mask marks. Rows that
/// begin alike are computed together, at most `max_tokens_per_pass` at a time; they may belong to different groups.
pub fn score(
    model: &Model,
    active: &Active,
    rows: &[TrainRow],
    temperature: f64,
    max_tokens_per_pass: usize,
) -> Result<Vec<Vec<f32>>, PolicyError> {
    if let Some((row, reason)) = rows.iter().enumerate().find_map(|(at, row)| Some((at, row.scoring_fault()?))) {
        return Err(PolicyError::Row { group: 0, row, reason });
    }
    let _guard = tch::no_grad_guard();
    let mut scores = vec![Vec::new(); rows.len()];
    for pass in plan(rows, max_tokens_per_pass) {
        let actions = pass.actions(rows)?;
        let predictors = Tensor::from_slice(&actions.predictors).to_device(model.device());
        let targets = Tensor::from_slice(&actions.targets).to_device(model.device());
        let hidden = model.forward(&pass.packed, active, None)?.index_select(0, &predictors);
        let logprobs = model.logprobs(&hidden, &targets, temperature).to_kind(Kind::Float).to_device(Device::Cpu);
        let mut values = vec![0f32; actions.places.len()];
        logprobs.copy_data(&mut values, actions.places.len());
        for ((row, _), value) in actions.places.iter().zip(values) {
            scores[*row].push(value);
        }
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{tiny_model, values};
    use crate::packed::Packed;

    #[test]
    fn scores_are_the_log_probs_of_each_row_alone_whatever_is_computed_together() {
        let model = tiny_model(5);
        let row = |tokens: &[i32], mask: &[u8]| TrainRow {
            tokens: tokens.to_vec(),
            action_mask: mask.iter().map(|bit| *bit == 1).collect(),
            old_logprobs: Vec::new(),
            advantage: f32::NAN,
        };
        let rows = [row(&[1, 2, 3, 4, 5], &[0, 0, 1, 0, 1]), row(&[1, 2, 3, 9], &[0, 0, 1, 1]), row(&[8, 7], &[0, 1])];
        for limit in [1, 7, 100] {
            let scores = score(&model, &Active::Base, &rows, 0.8, limit).unwrap();
            for (row, scores) in rows.iter().zip(&scores) {
                let alone = Packed { prefix: row.tokens.clone(), branches: vec![] };
                let logits = model.logits(&model.forward(&alone, &Active::Base, None).unwrap());
                let logprobs = (logits / 0.8).log_softmax(-1, Kind::Double);
                let positions: Vec<usize> = (0..row.tokens.len()).filter(|&at| row.action_mask[at]).collect();
                assert_eq!(scores.len(), positions.len());
                for (position, score) in positions.into_iter().zip(scores) {
                    let expected = values(&logprobs.get(position as i64 - 1))[row.tokens[position] as usize];
                    assert!((f64::from(*score) - expected).abs() < 1e-5, "{score} is not {expected}");
                }
            }
        }
    }
}
