//! From logits to sampled tokens and their log-probs under the distribution that was sampled from.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Kind, Tensor};

/// Probabilities are first drawn by blocks of this many tokens, then within one block: only the blocks' sums and one
/// block of each row leave the device, however large the vocabulary.
const BLOCK: i64 = 256;

/// The distribution that tokens are drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it. 0 takes the likeliest token, whose log-prob is then that at temperature 1.
    pub temperature: f64,
    /// The smallest set of likeliest tokens that has at least this probability is kept, in `(0, 1]`; 1 keeps all.
    /// Applied after `top_k`, on what it kept.
    pub top_p: f64,
    /// So many likeliest tokens are kept; 0 keeps all.
    pub top_k: u32,
}

impl Default for Sampling {
    /// The policy itself: temperature 1, nothing cut off.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: 0 }
    }
}

impl Sampling {
    /// The likeliest token at each step.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, top_k: 0 };

    /// What is wrong with these settings, if anything.
    pub fn fault(&self) -> Option<String> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Some(format!("temperature is {}, not a number >= 0", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Some(format!("top_p is {}, not a number in (0, 1]", self.top_p));
        }
        None
    }

    fn greedy(&self) -> bool {
        self.temperature == 0.0
    }

    fn truncates(&self) -> bool {
        !self.greedy() && (self.top_p < 1.0 || self.top_k > 0)
    }
}

/// A number in `[0, 1)` that depends on the stream and the index alone, so that a token's chance does not depend on
/// what else is sampled beside it.
pub fn uniform(stream: &[u64; 4], index: u64) -> f64 {
    let mut seed = [0; 32];
    for (bytes, word) in seed.chunks_exact_mut(8).zip(stream) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut rng = ChaCha8Rng::from_seed(seed);
    // A number of 64 bits takes two words of the stream.
    rng.set_word_pos(2 * u128::from(index));
    rng.random()
}

/// One token per row of logits, and its log-prob under the distribution of that row.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// `[N]`.
    pub tokens: Vec<i32>,
    /// `[N]`; not finite where the logits are not.
    pub logprobs: Vec<f32>,
}

/// Draws one token per row of `logits: [N, vocabulary]`; `rows` has for each row its settings and a number in `[0, 1)`.
/// Log-probs are those of the distribution drawn from, renormalised where `top_k` or `top_p` cut it.
pub fn draw(logits: &Tensor, rows: &[(Sampling, f64)]) -> Drawn {
    tch::no_grad(|| {
        let logprobs = log_distribution(logits, rows);
        let sampled = inverse_cdf(&logprobs.exp(), rows);
        let tokens: Vec<i64> = match rows.iter().any(|(sampling, _)| sampling.greedy()) {
            false => sampled,
            true => {
                let likeliest = to_vec::<i64>(&logprobs.argmax(-1, false), Kind::Int64);
                let pick = |((row, sampled), likeliest): ((&(Sampling, f64), i64), i64)| {
                    if row.0.greedy() { likeliest } else { sampled }
                };
                rows.iter().zip(sampled).zip(likeliest).map(pick).collect()
            }
        };
        let index = Tensor::from_slice(&tokens).unsqueeze(1).to_device(logits.device());
        let logprobs = to_vec::<f32>(&logprobs.gather(1, &index, false), Kind::Float);
        Drawn { tokens: tokens.into_iter().map(|token| token as i32).collect(), logprobs }
    })
}

/// Log-probs `[N, vocabulary]` of what is sampled from, minus infinity for what was cut off.
fn log_distribution(logits: &Tensor, rows: &[(Sampling, f64)]) -> Tensor {
    let temperatures: Vec<f32> =
        rows.iter().map(|(sampling, _)| if sampling.greedy() { 1.0 } else { sampling.temperature as f32 }).collect();
    let logits = logits.to_kind(Kind::Float);
    let logprobs = match temperatures.iter().all(|temperature| *temperature == 1.0) {
        true => logits.log_softmax(-1, Kind::Float),
        false => {
            let temperatures = Tensor::from_slice(&temperatures).unsqueeze(1).to_device(logits.device());
            (logits / temperatures).log_softmax(-1, Kind::Float)
        }
    };
    let cut: Vec<i64> = (0..rows.len()).filter(|row| rows[*row].0.truncates()).map(|row| row as i64).collect();
    if cut.is_empty() {
        return logprobs;
    }
    let device = logprobs.device();
    let column = |value: &dyn Fn(&Sampling) -> f32| {
        let values: Vec<f32> = cut.iter().map(|row| value(&rows[*row as usize].0)).collect();
        Tensor::from_slice(&values).unsqueeze(1).to_device(device)
    };
    let vocabulary = logprobs.size()[1];
    let top_k = column(&|sampling| if sampling.top_k == 0 { vocabulary as f32 } else { sampling.top_k as f32 });
    // With 1, rounding could cut the tail off: no sum of probabilities reaches 2.
    let top_p = column(&|sampling| if sampling.top_p < 1.0 { sampling.top_p as f32 } else { 2.0 });
    let index = Tensor::from_slice(&cut).to_device(device);
    let (sorted, order) = logprobs.index_select(0, &index).sort_stable(true, -1, true);
    let rank = Tensor::arange(vocabulary, (Kind::Float, device));
    let kept = sorted.masked_fill(&rank.ge_tensor(&top_k), f64::NEG_INFINITY).log_softmax(-1, Kind::Float);
    let probabilities = kept.exp();
    let before = probabilities.cumsum(-1, Kind::Double) - &probabilities;
    let kept = kept.masked_fill(&before.ge_tensor(&top_p), f64::NEG_INFINITY).log_softmax(-1, Kind::Float);
    let kept = kept.scatter(1, &order, &kept);
    logprobs.index_copy(0, &index, &kept)
}

/// For each row of probabilities `[N, vocabulary]` the first token at which their sum exceeds the row's number.
fn inverse_cdf(probabilities: &Tensor, rows: &[(Sampling, f64)]) -> Vec<i64> {
    let (count, vocabulary) = (rows.len(), probabilities.size()[1]);
    let blocks = (vocabulary + BLOCK - 1) / BLOCK;
    let padded = probabilities.constant_pad_nd([0, blocks * BLOCK - vocabulary]).view([count as i64, blocks, BLOCK]);
    let sums = to_vec::<f64>(&padded.sum_dim_intlist([-1i64].as_slice(), false, Kind::Double), Kind::Double);
    let mut chosen = Vec::with_capacity(count);
    for ((_, number), sums) in rows.iter().zip(sums.chunks_exact(blocks as usize)) {
        chosen.push(walk(sums.iter().copied(), number * sums.iter().sum::<f64>()));
    }
    let blocks: Vec<i64> = chosen.iter().map(|(block, _)| *block as i64).collect();
    let index = Tensor::from_slice(&blocks).view([-1, 1, 1]).expand([-1, 1, BLOCK], false).to_device(padded.device());
    let block = to_vec::<f32>(&padded.gather(1, &index, false), Kind::Float);
    let within = block.chunks_exact(BLOCK as usize).zip(&chosen);
    let tokens =
        within.map(|(block, (at, rest))| *at * BLOCK as usize + walk(block.iter().map(|p| f64::from(*p)), *rest).0);
    tokens.map(|token| token.min(vocabulary as usize - 1) as i64).collect()
}

/// The first weight at which the sum exceeds `target`, and what of `target` is left there; the last positive weight
/// where rounding kept the sum below.
fn walk(weights: impl Iterator<Item = f64>, target: f64) -> (usize, f64) {
    let (mut left, mut last) = (target, (0, 0.0));
    for (at, weight) in weights.enumerate() {
        if weight > left {
            return (at, left);
        }
        if weight > 0.0 {
            last = (at, weight);
        }
        left -= weight;
    }
    last
}

/// The numbers of a tensor in order, as `kind`, which must be that of `T`.
pub(crate) fn to_vec<T: tch::kind::Element + Copy + Default>(tensor: &Tensor, kind: Kind) -> Vec<T> {
    let flat = tensor.to_kind(kind).to_device(tch::Device::Cpu).contiguous().view([-1]);
    let mut values = vec![T::default(); flat.numel()];
    flat.copy_data(&mut values, flat.numel());
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    /// Logits over 600 tokens, more than two blocks, of which the first and the last have most of the weight.
    fn logits() -> Vec<f64> {
        (0..600).map(|token| if token < 3 { 4.0 - f64::from(token) } else { f64::from(token) / 200.0 }).collect()
    }

    /// In plain numbers: the distribution that tokens are drawn from.
    fn distribution(logits: &[f64], sampling: &Sampling) -> Vec<f64> {
        let mut weights: Vec<f64> = logits.iter().map(|logit| (logit / sampling.temperature).exp()).collect();
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
        if sampling.top_k > 0 {
            order.iter().skip(sampling.top_k as usize).for_each(|token| weights[*token] = 0.0);
        }
        let (total, mut sum) = (weights.iter().sum::<f64>(), 0.0);
        for token in order {
            if sum >= sampling.top_p * total {
                weights[token] = 0.0;
            }
            sum += weights[token];
        }
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    const SETTINGS: [Sampling; 6] = [
        Sampling { temperature: 1.0, top_p: 1.0, top_k: 0 },
        Sampling { temperature: 0.5, top_p: 1.0, top_k: 0 },
        Sampling { temperature: 1.0, top_p: 0.7, top_k: 0 },
        Sampling { temperature: 1.0, top_p: 1.0, top_k: 5 },
        Sampling { temperature: 2.0, top_p: 0.5, top_k: 100 },
        Sampling { temperature: 1.0, top_p: 1e-9, top_k: 0 },
    ];

    fn draw_many(sampling: Sampling, count: u64) -> Drawn {
        tch::set_num_threads(1);
        let logits: Vec<f32> = logits().iter().map(|logit| *logit as f32).collect();
        let logits = Tensor::from_slice(&logits).unsqueeze(0).expand([count as i64, -1], false);
        let rows: Vec<(Sampling, f64)> = (0..count).map(|i| (sampling, uniform(&[1, 2, 3, 4], i))).collect();
        draw(&logits, &rows)
    }

    #[test]
    fn a_log_prob_is_that_of_the_distribution_drawn_from() {
        for sampling in SETTINGS {
            let expected = distribution(&logits(), &sampling);
            let drawn = draw_many(sampling, 2000);
            for (token, logprob) in drawn.tokens.iter().zip(&drawn.logprobs) {
                let expected = expected[*token as usize].ln();
                assert!((f64::from(*logprob) - expected).abs() < 1e-5, "{sampling:?} {token}: {logprob} {expected}");
            }
        }
    }

    #[test]
    fn tokens_are_drawn_as_often_as_their_probability_says() {
        for sampling in SETTINGS {
            let (expected, count) = (distribution(&logits(), &sampling), 20_000);
            let mut seen = vec![0.0; expected.len()];
            draw_many(sampling, count).tokens.iter().for_each(|token| seen[*token as usize] += 1.0);
            // Pearson's statistic over cells of at least 20 expected draws; its deviation is sqrt(2 cells).
            let (mut cells, mut statistic, mut cell) = (0, 0.0, (0.0, 0.0));
            for (seen, p) in seen.iter().zip(&expected) {
                assert!(*p > 0.0 || *seen == 0.0, "{sampling:?} drew what was cut off");
                cell = (cell.0 + seen, cell.1 + p * count as f64);
                if cell.1 >= 20.0 {
                    statistic += (cell.0 - cell.1).powi(2) / cell.1;
                    (cells, cell) = (cells + 1, (0.0, 0.0));
                }
            }
            let limit = f64::from(cells) + 5.0 * (2.0 * f64::from(cells)).sqrt();
            assert!(statistic < limit, "{sampling:?}: {statistic} of {cells} cells");
        }
    }

    #[test]
    fn greedy_takes_the_likeliest_and_reports_it_at_temperature_1() {
        let drawn = draw_many(Sampling::GREEDY, 3);
        let expected = distribution(&logits(), &Sampling::default());
        assert_eq!(drawn.tokens, [0, 0, 0]);
        assert!((f64::from(drawn.logprobs[0]) - expected[0].ln()).abs() < 1e-5);
    }

    #[test]
    fn a_row_is_drawn_the_same_whatever_stands_beside_it() {
        tch::set_num_threads(1);
        let logits = Tensor::randn([6, 600], (Kind::Float, Device::Cpu)) * 3.0;
        let settings = [SETTINGS[0], Sampling::GREEDY, SETTINGS[2], SETTINGS[4], SETTINGS[1], SETTINGS[3]];
        let rows: Vec<(Sampling, f64)> = (0..6).map(|i| (settings[i], uniform(&[9; 4], i as u64))).collect();
        let together = draw(&logits, &rows);
        for (at, row) in rows.iter().enumerate() {
            let alone = draw(&logits.narrow(0, at as i64, 1), &[*row]);
            assert_eq!((alone.tokens[0], alone.logprobs[0]), (together.tokens[at], together.logprobs[at]));
        }
    }

    #[test]
    fn a_token_of_probability_0_is_never_drawn_at_the_ends() {
        let mut values = vec![f32::NEG_INFINITY; 600];
        (values[300], values[301]) = (0.0, 0.0);
        let logits = Tensor::from_slice(&values).unsqueeze(0).expand([3, -1], false);
        let rows = [0.0, 0.5, 1.0 - f64::EPSILON / 2.0].map(|number| (Sampling::default(), number));
        assert_eq!(draw(&logits, &rows).tokens, [300, 301, 301]);
    }

    #[test]
    fn random_numbers_depend_on_stream_and_index_alone() {
        let numbers: Vec<f64> = (0..1000).map(|i| uniform(&[7, 0, 0, 0], i)).collect();
        assert_eq!(numbers[5], uniform(&[7, 0, 0, 0], 5));
        assert_ne!(numbers[5], uniform(&[7, 0, 0, 1], 5));
        let mut distinct = numbers.clone();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        assert_eq!(distinct.len(), 1000);
        assert!((numbers.iter().sum::<f64>() / 1000.0 - 0.5).abs() < 0.05);
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
    }

    #[test]
    fn settings_that_mean_nothing_are_named() {
        let fault = |temperature, top_p| Sampling { temperature, top_p, top_k: 0 }.fault();
        assert_eq!(fault(0.0, 1.0), None);
        assert!(fault(-1.0, 1.0).is_some_and(|fault| fault.contains("temperature")));
        assert!(fault(f64::NAN, 1.0).is_some());
        assert!(fault(1.0, 0.0).is_some_and(|fault| fault.contains("top_p")));
        assert!(fault(1.0, 1.1).is_some());
    }
}
