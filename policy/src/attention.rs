//! Scaled dot-product attention, the one place where the kernel is chosen.

use tch::{Device, Kind, Tensor};

/// `softmax(q k^T / sqrt(D) + mask) v` with queries `[B, heads, Q, D]` and keys and values `[B, heads, K, D]`, to
/// `[B, heads, Q, D]`. `mask` is additive, `[Q, K]` or broadcastable to `[B, heads, Q, K]`, of the queries' kind, with
/// minus infinity where nothing may be seen; every query must see something. `causal` instead lets query `i` see
/// keys `0..=i`. Differentiable in q, k and v.
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, causal: bool) -> Tensor {
    if q.device() == Device::Cpu {
        // Blocks of scores stay in the cache, forward and backward: several times faster than the products below,
        // and no tensor of all scores is kept for the gradient.
        return Tensor::internal_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, mask, None).0;
    }
    let (queries, keys, width) = (q.size()[2], k.size()[2], q.size()[3]);
    let mut scores = q.matmul(&k.transpose(-1, -2)) / (width as f64).sqrt();
    if let Some(mask) = mask {
        scores += mask;
    } else if causal {
        scores += Tensor::full([queries, keys], f64::NEG_INFINITY, (q.kind(), q.device())).triu(1);
    }
    scores.softmax(-1, Kind::Float).to_kind(v.kind()).matmul(v)
}

/// [`attend`] without gradients and without a causal mask, together with the logarithm of each query's sum of
/// exponentials, `[B, heads, Q]`: two results over different keys are merged by it into the result over all of them.
pub(crate) fn attend_with_lse(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> (Tensor, Tensor) {
    if q.device() == Device::Cpu {
        return Tensor::internal_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, false, mask, None);
    }
    products_with_lse(q, k, v, mask)
}

/// The same by plain products, for devices on which no kernel gives the logarithm under a mask.
fn products_with_lse(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> (Tensor, Tensor) {
    let mut scores = q.matmul(&k.transpose(-1, -2)) / (q.size()[3] as f64).sqrt();
    if let Some(mask) = mask {
        scores += mask;
    }
    let scores = scores.to_kind(Kind::Float);
    let lse = scores.logsumexp([-1], true);
    let out = (scores - &lse).exp().to_kind(v.kind()).matmul(v);
    (out, lse.squeeze_dim(-1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_products_and_the_kernel_give_the_same_result_and_logarithm() {
        tch::set_num_threads(1);
        let random = |length| Tensor::randn([3, 2, length, 8], (Kind::Float, Device::Cpu));
        let (q, k, v) = (random(4), random(70), random(70));
        let hidden = Tensor::arange(70, (Kind::Int64, Device::Cpu))
            .ge_tensor(&Tensor::from_slice(&[1_i64, 33, 70]).view([3, 1, 1, 1]));
        let mask = hidden.zeros_like().to_kind(Kind::Float).masked_fill(&hidden, f64::NEG_INFINITY);
        for mask in [None, Some(&mask)] {
            let (out, lse) = products_with_lse(&q, &k, &v, mask);
            let (kernel_out, kernel_lse) = attend_with_lse(&q, &k, &v, mask);
            assert!(out.allclose(&kernel_out, 1e-5, 1e-5, false));
            assert!(lse.allclose(&kernel_lse, 1e-5, 1e-5, false));
        }
    }
}
