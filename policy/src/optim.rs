//! Optimisers over named tensors, with states that are saved and resumed exactly.
//!
//! [`AdamW`] trains adapters, gates, embeddings and norms; [`Muon`] the hidden matrices of a model trained from
//! nothing. Both update tensors in place; the learning rate is given with every step.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use crate::error::PolicyError;
use crate::tensorfile::TensorFile;

/// Constants of [`AdamW`].
#[derive(Debug, Clone, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled: each step multiplies weights by `1 - lr * weight_decay`.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    /// The published setting of PyTorch, without weight decay.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// Adam with decoupled weight decay and bias correction (arXiv 1711.05101), equal to PyTorch's.
#[derive(Debug)]
pub struct AdamW {
    config: AdamWConfig,
    steps: u64,
    parameters: Vec<(String, Tensor)>,
    first: Vec<Tensor>,
    second: Vec<Tensor>,
}

impl AdamW {
    /// An optimiser over tensors that share storage with `parameters`; names must differ.
    pub fn new(config: AdamWConfig, parameters: Vec<(String, Tensor)>) -> Self {
        let zeros = || parameters.iter().map(|(_, tensor)| tensor.detach().zeros_like()).collect();
        Self { config, steps: 0, first: zeros(), second: zeros(), parameters }
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Changes the weight decay of the steps to come.
    pub fn set_weight_decay(&mut self, weight_decay: f64) {
        self.config.weight_decay = weight_decay;
    }

    /// One update from the gradients, in the parameters' order and shapes.
    pub fn step(&mut self, gradients: &[Tensor], lr: f64) {
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.config;
        self.steps += 1;
        let exponent = self.steps as f64;
        let correction1 = 1.0 - beta1.powf(exponent);
        let correction2 = (1.0 - beta2.powf(exponent)).sqrt();
        tch::no_grad(|| {
            let moments = self.first.iter_mut().zip(&mut self.second);
            for (((_, parameter), gradient), (first, second)) in self.parameters.iter().zip(gradients).zip(moments) {
                let mut parameter = parameter.detach();
                if weight_decay != 0.0 {
                    let _ = parameter.g_mul_scalar_(1.0 - lr * weight_decay);
                }
                let _ = first.lerp_(gradient, 1.0 - beta1);
                let _ = second.lerp_(&gradient.square(), 1.0 - beta2);
                let denominator = second.sqrt() / correction2 + eps;
                parameter -= &*first / denominator * (lr / correction1);
            }
        });
    }

    /// The state's tensors, named after the parameters; with [`AdamW::restore`] a resume is exact.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let mut state = vec![("adamw.steps".to_owned(), Tensor::from_slice(&[self.steps as i64]))];
        for ((name, _), (first, second)) in self.parameters.iter().zip(self.first.iter().zip(&self.second)) {
            state.push((format!("adamw.first.{name}"), first.shallow_clone()));
            state.push((format!("adamw.second.{name}"), second.shallow_clone()));
        }
        state
    }

    /// Takes the state that [`AdamW::state`] gave out of a file; `place` names it in errors.
    pub fn restore(&mut self, file: &mut TensorFile, place: &str) -> Result<(), PolicyError> {
        let steps = file.take("adamw.steps", &[1], Kind::Int64, place)?.int64_value(&[0]) as u64;
        let mut moments = (Vec::new(), Vec::new());
        for ((name, _), first) in self.parameters.iter().zip(&self.first) {
            moments.0.push(file.take(&format!("adamw.first.{name}"), &first.size(), first.kind(), place)?);
            moments.1.push(file.take(&format!("adamw.second.{name}"), &first.size(), first.kind(), place)?);
        }
        (self.first, self.second) = moments;
        self.steps = steps;
        Ok(())
    }
}

/// Constants of [`Muon`].
#[derive(Debug, Clone, PartialEq)]
pub struct MuonConfig {
    /// Decay of the momentum, which is Nesterov's.
    pub momentum: f64,
    /// Decoupled: each step multiplies weights by `1 - lr * weight_decay`.
    pub weight_decay: f64,
}

impl Default for MuonConfig {
    fn default() -> Self {
        Self { momentum: 0.95, weight_decay: 0.0 }
    }
}

/// Coefficients of the quintic Newton-Schulz iteration, and how often it runs: it drives all singular values of a
/// matrix to about 1 (Keller Jordan's Muon).
const NEWTON_SCHULZ: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);
const NEWTON_SCHULZ_STEPS: usize = 5;

/// Momentum whose update is made orthogonal, for matrices. Scaled by `0.2 sqrt(max(rows, columns))`, so that an
/// update's elements have the size of AdamW's and learning rates carry over (arXiv 2502.16982).
#[derive(Debug)]
pub struct Muon {
    config: MuonConfig,
    parameters: Vec<(String, Tensor)>,
    momenta: Vec<Tensor>,
    /// Indices of parameters of one shape, which are orthogonalised as one batch.
    batches: Vec<Vec<usize>>,
}

impl Muon {
    /// An optimiser over matrices that share storage with `parameters`; names must differ.
    pub fn new(config: MuonConfig, parameters: Vec<(String, Tensor)>) -> Result<Self, PolicyError> {
        let mut shapes: BTreeMap<(i64, i64), Vec<usize>> = BTreeMap::new();
        for (index, (name, tensor)) in parameters.iter().enumerate() {
            let &[rows, columns] = tensor.size().as_slice() else {
                return Err(PolicyError::Usage(format!(
                    "Muon updates matrices; `{name}` has shape {:?}",
                    tensor.size()
                )));
            };
            shapes.entry((rows.min(columns), rows.max(columns))).or_default().push(index);
        }
        let momenta = parameters.iter().map(|(_, tensor)| tensor.detach().zeros_like()).collect();
        Ok(Self { config, momenta, parameters, batches: shapes.into_values().collect() })
    }

    /// One update from the gradients, in the parameters' order and shapes.
    pub fn step(&mut self, gradients: &[Tensor], lr: f64) {
        let MuonConfig { momentum, weight_decay } = self.config;
        tch::no_grad(|| {
            for batch in &self.batches {
                let mut updates = Vec::with_capacity(batch.len());
                for &index in batch {
                    let velocity = &mut self.momenta[index];
                    let _ = velocity.lerp_(&gradients[index], 1.0 - momentum);
                    let update = gradients[index].lerp(velocity, momentum);
                    updates.push(if is_tall(&update) { update.tr() } else { update });
                }
                let orthogonal = orthogonalise(&Tensor::stack(&updates, 0));
                let scale = 0.2 * (orthogonal.size()[2] as f64).sqrt();
                for (&index, update) in batch.iter().zip(orthogonal.unbind(0)) {
                    let mut parameter = self.parameters[index].1.detach();
                    if weight_decay != 0.0 {
                        let _ = parameter.g_mul_scalar_(1.0 - lr * weight_decay);
                    }
                    parameter -= if is_tall(&parameter) { update.tr() } else { update } * (lr * scale);
                }
            }
        });
    }

    /// The state's tensors, named after the parameters; with [`Muon::restore`] a resume is exact.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let named = self.parameters.iter().zip(&self.momenta);
        named.map(|((name, _), momentum)| (format!("muon.momentum.{name}"), momentum.shallow_clone())).collect()
    }

    /// Takes the state that [`Muon::state`] gave out of a file; `place` names it in errors.
    pub fn restore(&mut self, file: &mut TensorFile, place: &str) -> Result<(), PolicyError> {
        let mut momenta = Vec::new();
        for ((name, _), momentum) in self.parameters.iter().zip(&self.momenta) {
            momenta.push(file.take(&format!("muon.momentum.{name}"), &momentum.size(), momentum.kind(), place)?);
        }
        self.momenta = momenta;
        Ok(())
    }
}

fn is_tall(matrix: &Tensor) -> bool {
    matrix.size()[0] > matrix.size()[1]
}

/// Matrices `[batch, rows, columns]`, rows at most columns, to ones of about the same singular vectors and singular
/// values near 1.
fn orthogonalise(matrices: &Tensor) -> Tensor {
    let (a, b, c) = NEWTON_SCHULZ;
    let norms = matrices.square().sum_dim_intlist([1i64, 2].as_slice(), true, matrices.kind()).sqrt();
    let mut x = matrices / (norms + 1e-7);
    for _ in 0..NEWTON_SCHULZ_STEPS {
        let gram = x.bmm(&x.transpose(1, 2));
        let polynomial = &gram * b + gram.bmm(&gram) * c;
        x = &x * a + polynomial.bmm(&x);
    }
    x
}

/// The Euclidean norm of all gradients together, computed in f64 after sums per tensor.
pub fn gradient_norm(gradients: &[Tensor]) -> f64 {
    let squares: Vec<Tensor> = gradients.iter().map(|gradient| gradient.square().sum(Kind::Double)).collect();
    if squares.is_empty() { 0.0 } else { Tensor::stack(&squares, 0).sum(Kind::Double).sqrt().double_value(&[]) }
}

/// Scales gradients in place so that their common norm is at most `max_norm`; gives the norm before.
pub fn clip_gradient_norm(gradients: &mut [Tensor], max_norm: f64) -> f64 {
    let norm = gradient_norm(gradients);
    if norm > max_norm {
        tch::no_grad(|| {
            for gradient in gradients {
                let _ = gradient.g_mul_scalar_(max_norm / (norm + 1e-6));
            }
        });
    }
    norm
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(values: &[f64], shape: &[i64]) -> Vec<(String, Tensor)> {
        vec![("w".to_owned(), Tensor::from_slice(values).view(shape))]
    }

    fn read(tensor: &Tensor) -> Vec<f64> {
        Vec::<f64>::try_from(tensor.reshape([-1])).unwrap()
    }

    #[test]
    fn adamw_follows_its_published_recurrence() {
        let config = AdamWConfig { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1 };
        let parameters = named(&[1.0, -2.0], &[2]);
        let tensor = parameters[0].1.shallow_clone();
        let mut optimiser = AdamW::new(config, parameters);
        let (mut weights, mut first, mut second) = ([1.0, -2.0], [0.0; 2], [0.0; 2]);
        for (step, gradients) in [[0.5, -1.0], [0.1, 2.0], [-0.7, 0.0]].into_iter().enumerate() {
            let lr = 0.1 / (step + 1) as f64;
            optimiser.step(&[Tensor::from_slice(&gradients)], lr);
            for at in 0..2 {
                weights[at] *= 1.0 - lr * 0.1;
                first[at] = 0.9 * first[at] + 0.1 * gradients[at];
                second[at] = 0.99 * second[at] + 0.01 * gradients[at] * gradients[at];
                let corrected = first[at] / (1.0 - 0.9f64.powi(step as i32 + 1));
                let spread = (second[at] / (1.0 - 0.99f64.powi(step as i32 + 1))).sqrt();
                weights[at] -= lr * corrected / (spread + 1e-8);
            }
            for (found, expected) in read(&tensor).into_iter().zip(weights) {
                assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
            }
        }
    }

    #[test]
    fn muon_moves_along_the_orthogonal_factor_of_its_momentum_with_the_size_of_an_adamw_step() {
        for shape in [[2, 3], [3, 2]] {
            let parameters = named(&[0.0; 6], &shape);
            let tensor = parameters[0].1.shallow_clone();
            let mut optimiser = Muon::new(MuonConfig::default(), parameters).unwrap();
            // Singular values 3 and 0.2: after the update both directions count about alike.
            let gradient = Tensor::from_slice(&[3.0, 0.0, 0.0, 0.0, 0.2, 0.0]).view([2, 3]);
            let gradient = if shape == [2, 3] { gradient } else { gradient.tr().contiguous() };
            optimiser.step(&[gradient], 0.1);
            let update = -&tensor / (0.1 * 0.2 * 3f64.sqrt());
            let update = if shape == [2, 3] { update } else { update.tr() };
            let gram = update.matmul(&update.tr());
            let gram = read(&gram);
            assert!(gram[1].abs() < 1e-9 && gram[2].abs() < 1e-9, "{gram:?}");
            assert!((0.4..1.5).contains(&gram[0]) && (0.4..1.5).contains(&gram[3]), "{gram:?}");
        }
    }

    #[test]
    fn gradients_are_scaled_to_the_common_norm_only_when_they_exceed_it() {
        let mut gradients = [Tensor::from_slice(&[3.0f64]), Tensor::from_slice(&[0.0, 4.0f64])];
        assert!((clip_gradient_norm(&mut gradients, 10.0) - 5.0).abs() < 1e-12);
        assert_eq!(read(&gradients[1]), [0.0, 4.0]);
        assert!((clip_gradient_norm(&mut gradients, 1.0) - 5.0).abs() < 1e-12);
        assert!((gradient_norm(&gradients) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn muon_refuses_what_is_no_matrix() {
        assert!(matches!(Muon::new(MuonConfig::default(), named(&[0.0; 2], &[2])), Err(PolicyError::Usage(_))));
    }
}
