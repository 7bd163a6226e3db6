//! The output head in training: forward and backward chunk by chunk, so that the logits of a whole batch never exist.

use std::ops::Range;

use tch::Tensor;

use crate::error::PolicyError;
use crate::model::Model;

/// Computes the log-probs of `targets: [M]` (i64) at rows `predictors: [M]` (i64) of `hidden: [N, H]`, hands them to
/// `loss` one chunk at a time, and runs the whole backward pass, adding to the gradients of what `hidden` was computed
/// from. `loss` gets a chunk's log-probs and its range in `0..M` and returns the chunk's share of the loss, a scalar.
pub fn backward_through_head(
    model: &Model,
    hidden: &Tensor,
    predictors: &Tensor,
    targets: &Tensor,
    temperature: f64,
    mut loss: impl FnMut(&Tensor, Range<usize>) -> Result<Tensor, PolicyError>,
) -> Result<(), PolicyError> {
    let (total, step) = (targets.size()[0], model.head_chunk());
    let selected = hidden.index_select(0, predictors);
    let leaf = selected.detach().set_requires_grad(true);
    for start in (0..total).step_by(step as usize) {
        let length = step.min(total - start);
        let logprobs = model.logprobs(&leaf.narrow(0, start, length), &targets.narrow(0, start, length), temperature);
        loss(&logprobs, start as usize..(start + length) as usize)?.backward();
    }
    // The engine seeds a backward pass with ones only; this product has the gradient of `selected` as its own.
    (selected * leaf.grad().detach()).sum(leaf.kind()).backward();
    Ok(())
}
