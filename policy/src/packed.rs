//! Sequences that share their beginning, laid out so that the beginning is computed once.
//!
//! A pack is one prefix and any number of branches. Row `b` of a pack is the sequence `prefix ++ branches[b]`. The
//! hidden states of a pack are flat, `[tokens, hidden]`: first the prefix, then branch after branch, without
//! padding. A token of a branch sees the prefix and its own branch up to itself; nothing of other branches.

use tch::{Device, Kind, Tensor};

use crate::attention::attend;
use crate::config::ModelConfig;
use crate::error::PolicyError;

/// One prefix, which may be empty, and the branches that continue it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packed {
    /// Token ids that all rows begin with.
    pub prefix: Vec<i32>,
    /// What follows the prefix in each row; no branch is empty.
    pub branches: Vec<Vec<i32>>,
}

impl Packed {
    /// Packs rows on their longest common prefix. Each row keeps at least its last token as a branch, so that every
    /// row exists as one, equal rows too. Rows must not be empty.
    pub fn from_rows(rows: &[&[i32]]) -> Self {
        let shortest = rows.iter().map(|row| row.len()).min().unwrap_or(0);
        let first = rows.first().copied().unwrap_or(&[]);
        let limit = shortest.saturating_sub(1);
        let common = (0..limit).find(|&at| rows.iter().any(|row| row[at] != first[at])).unwrap_or(limit);
        Self { prefix: first[..common].to_vec(), branches: rows.iter().map(|row| row[common..].to_vec()).collect() }
    }

    /// Number of tokens that are computed: the prefix once, and every branch.
    pub fn tokens(&self) -> usize {
        self.prefix.len() + self.branches.iter().map(Vec::len).sum::<usize>()
    }

    /// Index, in the flat hidden states, of the state that predicts token `position` of row `branch`, where
    /// positions count from the start of the prefix. None for the very first token, which nothing predicts, and for
    /// positions outside the row.
    pub fn predictor(&self, branch: usize, position: usize) -> Option<i64> {
        let prefix = self.prefix.len();
        let before = position.checked_sub(1)?;
        if position >= prefix + self.branches.get(branch)?.len() {
            return None;
        }
        if before < prefix {
            return Some(before as i64);
        }
        let offset: usize = self.branches[..branch].iter().map(Vec::len).sum();
        Some((offset + before) as i64)
    }

    /// Fails when a token is outside the vocabulary, a row longer than the model's positions, a branch empty, or
    /// when there is nothing to compute.
    pub fn check(&self, config: &ModelConfig) -> Result<(), PolicyError> {
        if self.tokens() == 0 {
            return Err(PolicyError::Usage("a pack without tokens was given: there is nothing to compute".to_owned()));
        }
        let pieces = std::iter::once(&self.prefix).chain(&self.branches);
        for (piece, tokens) in pieces.enumerate() {
            let name = || if piece == 0 { "the prefix".to_owned() } else { format!("branch {}", piece - 1) };
            if piece > 0 && tokens.is_empty() {
                return Err(PolicyError::Usage(format!("{} of a pack is empty: leave it out", name())));
            }
            let length = tokens.len() + if piece == 0 { 0 } else { self.prefix.len() };
            if length as i64 > config.max_position_embeddings {
                return Err(PolicyError::TooLong { length, limit: config.max_position_embeddings });
            }
            if let Some(at) = tokens.iter().position(|&id| !(0..config.vocab_size).contains(&i64::from(id))) {
                let place = format!("index {at} of {}", name());
                return Err(PolicyError::TokenId { id: tokens[at], place, vocab_size: config.vocab_size });
            }
        }
        Ok(())
    }
}

/// What every layer needs to know of a pack, made once per forward pass.
pub(crate) struct PackLayout {
    prefix: i64,
    branches: Vec<i64>,
    longest: i64,
    mask: Option<Tensor>,
    pub(crate) ids: Tensor,
    pub(crate) positions: Tensor,
}

impl PackLayout {
    /// `group` is the number of query heads that share a key head.
    pub(crate) fn new(packed: &Packed, group: i64, kind: Kind, device: Device) -> Self {
        let prefix = packed.prefix.len() as i64;
        let branches: Vec<i64> = packed.branches.iter().map(|branch| branch.len() as i64).collect();
        let longest = branches.iter().copied().max().unwrap_or(0);
        let mut ids = packed.prefix.clone();
        let mut positions: Vec<i64> = (0..prefix).collect();
        for branch in &packed.branches {
            ids.extend_from_slice(branch);
            positions.extend(prefix..prefix + branch.len() as i64);
        }
        let mask = (longest > 0).then(|| {
            let own = Tensor::full([longest, longest], f64::NEG_INFINITY, (kind, device)).triu(1);
            let mask = Tensor::cat(&[Tensor::zeros([longest, prefix], (kind, device)), own], 1);
            mask.repeat([group, 1])
        });
        Self {
            prefix,
            branches,
            longest,
            mask,
            ids: Tensor::from_slice(&ids).to_kind(Kind::Int64).to_device(device),
            positions: Tensor::from_slice(&positions).to_device(device),
        }
    }

    /// Attention over the pack: queries `[N, heads, D]`, keys and values `[N, kv heads, D]` to `[N, heads * D]`.
    pub(crate) fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let parts = [self.prefix, self.branches.iter().sum()];
        let (q, k, v) = (q.split_with_sizes(parts, 0), k.split_with_sizes(parts, 0), v.split_with_sizes(parts, 0));
        let mut out = Vec::with_capacity(2);
        if self.prefix > 0 {
            out.push(self.attend_prefix(&q[0], &k[0], &v[0]));
        }
        if self.longest > 0 {
            out.push(self.attend_branches(&q[1], [&k[0], &v[0]], [&k[1], &v[1]]));
        }
        Tensor::cat(&out, 0)
    }

    fn attend_prefix(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let (heads, kv_heads, width) = (q.size()[1], k.size()[1], q.size()[2]);
        let spread =
            |x: &Tensor| {
                x.transpose(0, 1)
                    .unsqueeze(1)
                    .expand([kv_heads, heads / kv_heads, self.prefix, width], false)
                    .reshape([1, heads, self.prefix, width])
            };
        let out = attend(&q.transpose(0, 1).unsqueeze(0), &spread(k), &spread(v), None, true);
        out.squeeze_dim(0).transpose(0, 1).reshape([self.prefix, heads * width])
    }

    /// The query heads of one key head are laid one after the other along the query axis: keys are then read once
    /// for all of them and need not be copied per head.
    fn attend_branches(&self, q: &Tensor, prefix_kv: [&Tensor; 2], own_kv: [&Tensor; 2]) -> Tensor {
        let (heads, kv_heads, width) = (q.size()[1], own_kv[0].size()[1], q.size()[2]);
        let (count, group, longest) = (self.branches.len() as i64, heads / kv_heads, self.longest);
        let q = self.pad(q).view([count, longest, kv_heads, group, width]).permute([0, 2, 3, 1, 4]).reshape([
            count,
            kv_heads,
            group * longest,
            width,
        ]);
        let join = |at: usize| {
            let shared = prefix_kv[at].unsqueeze(0).expand([count, self.prefix, kv_heads, width], false);
            Tensor::cat(&[shared, self.pad(own_kv[at])], 1).transpose(1, 2)
        };
        let out = attend(&q, &join(0), &join(1), self.mask.as_ref(), false)
            .view([count, kv_heads, group, longest, width])
            .permute([0, 3, 1, 2, 4])
            .reshape([count * longest, heads * width]);
        self.unpad(&out)
    }

    fn is_even(&self) -> bool {
        self.branches.iter().all(|&length| length == self.longest)
    }

    /// `[sum of lengths, heads, D]` to `[branches, longest, heads, D]`, zeros behind each branch. One split and one
    /// concatenation: their gradients are as cheap, which indexing's is not.
    fn pad(&self, x: &Tensor) -> Tensor {
        let (heads, width) = (x.size()[1], x.size()[2]);
        let shape = [self.branches.len() as i64, self.longest, heads, width];
        if self.is_even() {
            return x.reshape(shape);
        }
        let mut pieces = Vec::with_capacity(2 * self.branches.len());
        for (branch, &length) in x.split_with_sizes(&self.branches, 0).into_iter().zip(&self.branches) {
            pieces.push(branch);
            pieces.push(Tensor::zeros([self.longest - length, heads, width], (x.kind(), x.device())));
        }
        Tensor::cat(&pieces, 0).view(shape)
    }

    /// The inverse of `pad`, for `[branches * longest, width]`.
    fn unpad(&self, x: &Tensor) -> Tensor {
        if self.is_even() {
            return x.shallow_clone();
        }
        let sizes: Vec<i64> = self.branches.iter().flat_map(|&length| [length, self.longest - length]).collect();
        let pieces: Vec<Tensor> = x.split_with_sizes(sizes, 0).into_iter().step_by(2).collect();
        Tensor::cat(&pieces, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_packed_on_their_longest_common_prefix_and_each_keeps_a_token() {
        let packed = Packed::from_rows(&[&[1, 2, 3, 4], &[1, 2, 5], &[1, 2, 3]]);
        assert_eq!(packed, Packed { prefix: vec![1, 2], branches: vec![vec![3, 4], vec![5], vec![3]] });
        let equal = Packed::from_rows(&[&[1, 2], &[1, 2]]);
        assert_eq!(equal, Packed { prefix: vec![1], branches: vec![vec![2], vec![2]] });
        assert_eq!(Packed::from_rows(&[&[7], &[7, 8]]), Packed { prefix: vec![], branches: vec![vec![7], vec![7, 8]] });
    }

    #[test]
    fn the_predictor_of_a_branch_s_first_token_is_the_prefix_s_last_state() {
        let packed = Packed { prefix: vec![1, 2], branches: vec![vec![3, 4], vec![5]] };
        let all: Vec<_> =
            (0..2).map(|branch| (0..5).map(|at| packed.predictor(branch, at)).collect::<Vec<_>>()).collect();
        assert_eq!(all[0], [None, Some(0), Some(1), Some(2), None]);
        assert_eq!(all[1], [None, Some(0), Some(1), None, None]);
        let bare = Packed { prefix: vec![], branches: vec![vec![3, 4], vec![5, 6]] };
        assert_eq!([bare.predictor(0, 0), bare.predictor(1, 0), bare.predictor(1, 1)], [None, None, Some(2)]);
    }
}
