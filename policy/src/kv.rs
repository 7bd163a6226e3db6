//! Keys and values of sequences that are still growing, and a decoder pass over new tokens of them.
//!
//! The cache is one tensor of keys and one of values per layer, `[rows, kv heads, capacity, head_dim]`. A row belongs
//! to one sequence. What many sequences begin with is held apart, once, as a [`Prefix`]; a row holds what follows it.
//! A new token attends to its prefix and to its row in two products, merged by their sums of exponentials: the
//! result is that of one softmax over both.

use tch::{Device, Kind, Tensor};

use crate::active::Active;
use crate::attention::attend_with_lse;
use crate::config::ModelConfig;
use crate::gates::Capture;
use crate::model::Model;
use crate::packed::{PackLayout, Packed};

/// Row capacities are multiples of this many tokens, so that a growing sequence seldom moves the cache.
const CAPACITY_STEP: i64 = 64;

/// The shapes of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvShape {
    layers: i64,
    heads: i64,
    kv_heads: i64,
    head_dim: i64,
}

impl KvShape {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        Self {
            layers: config.num_hidden_layers,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    /// Bytes of one token's keys and values over all layers.
    pub(crate) fn token_bytes(&self, kind: Kind) -> u64 {
        (2 * self.layers * self.kv_heads * self.head_dim) as u64 * kind.elt_size_in_bytes() as u64
    }

    /// Query heads that share one key head.
    fn group(&self) -> i64 {
        self.heads / self.kv_heads
    }
}

/// What many sequences begin with, computed once.
#[derive(Debug)]
pub(crate) struct Prefix {
    pub(crate) ids: Vec<i32>,
    /// Keys and values per layer, `[1, kv heads, P, head_dim]`.
    layers: Vec<[Tensor; 2]>,
}

impl Prefix {
    /// Computes the keys and values of `ids`, which must not be empty.
    pub(crate) fn compute(model: &Model, active: &Active, ids: &[i32]) -> Self {
        let shape = KvShape::of(model.config());
        let pack = Packed { prefix: ids.to_vec(), branches: Vec::new() };
        let layout = PackLayout::new(&pack, shape.group(), model.kind(), model.device());
        let rope = model.rope(&layout.positions);
        let mut x = model.embed(&layout.ids);
        let mut layers = Vec::new();
        for layer in 0..model.layers() {
            let acting = active.layer(layer, &x, None);
            let (q, k, v) = model.qkv(layer, &x, &rope, &acting);
            layers.push([&k, &v].map(|kept| kept.transpose(0, 1).unsqueeze(0).contiguous()));
            if layer + 1 < model.layers() {
                x = model.finish(layer, &x, &layout.attend(&q, &k, &v), &acting);
            }
        }
        Self { ids: ids.to_vec(), layers }
    }
}

/// Keys and values of what follows the prefixes.
#[derive(Debug)]
pub(crate) struct KvCache {
    shape: KvShape,
    kind: Kind,
    device: Device,
    rows: i64,
    capacity: i64,
    layers: Vec<[Tensor; 2]>,
}

impl KvCache {
    /// A cache without rows.
    pub(crate) fn new(shape: KvShape, kind: Kind, device: Device) -> Self {
        let mut cache = Self { shape, kind, device, rows: 0, capacity: 0, layers: Vec::new() };
        cache.layers = (0..shape.layers).map(|_| [cache.blank(0, 0), cache.blank(0, 0)]).collect();
        cache
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The capacity that rows get where `tokens` are needed.
    pub(crate) fn rounded(tokens: usize) -> usize {
        tokens.next_multiple_of(CAPACITY_STEP as usize)
    }

    /// Makes the cache exactly this big; what rows hold is kept as far as it fits. A no-op where it is so already.
    pub(crate) fn resize(&mut self, rows: usize, capacity: usize) {
        let (rows, capacity) = (rows as i64, capacity as i64);
        if (rows, capacity) == (self.rows, self.capacity) {
            return;
        }
        let (kept_rows, kept) = (rows.min(self.rows), capacity.min(self.capacity));
        for layer in 0..self.layers.len() {
            for half in 0..2 {
                let new = self.blank(rows, capacity);
                let corner = |tensor: &Tensor| tensor.narrow(0, 0, kept_rows).narrow(2, 0, kept);
                corner(&new).copy_(&corner(&self.layers[layer][half]));
                self.layers[layer][half] = new;
            }
        }
        (self.rows, self.capacity) = (rows, capacity);
    }

    /// Zeros: what is masked out is multiplied by zero, so it must be finite.
    fn blank(&self, rows: i64, capacity: i64) -> Tensor {
        Tensor::zeros([rows, self.shape.kv_heads, capacity, self.shape.head_dim], (self.kind, self.device))
    }

    /// Writes keys or values `[N, kv heads, head_dim]` of new tokens at the flat places of `layout`.
    fn write(&self, layer: usize, half: usize, new: &Tensor, layout: &FeedLayout) {
        let mut flat = self.layers[layer][half].view([-1, self.shape.head_dim]);
        let _ = flat.index_copy_(0, &layout.places, &new.reshape([-1, self.shape.head_dim]));
    }

    /// The first `length` keys or values of the rows that `layout` attends to.
    fn read(&self, layer: usize, half: usize, layout: &FeedLayout) -> Tensor {
        let seen = self.layers[layer][half].narrow(2, 0, layout.length);
        match &layout.rows {
            Rows::Run { start, count } => seen.narrow(0, *start, *count),
            Rows::Some(index) => seen.index_select(0, index),
        }
    }
}

/// New tokens of one sequence: those at places `start..start + ids.len()` of its row.
pub(crate) struct Feed<'a> {
    pub(crate) row: usize,
    pub(crate) start: usize,
    pub(crate) ids: &'a [i32],
    /// What the sequence begins with, before its row.
    pub(crate) prefix: Option<&'a Prefix>,
}

/// The rows that are attended to in one product.
enum Rows {
    /// Neighbouring rows, in place; those among them without new tokens get a query that nobody reads.
    Run { start: i64, count: i64 },
    /// These rows, copied.
    Some(Tensor),
}

/// What every layer needs to know of a pass over new tokens, made once per pass.
struct FeedLayout {
    /// `[N]`.
    ids: Tensor,
    /// `[N]`, counted from the start of the prefix.
    positions: Tensor,
    /// `[N * kv heads]`: where each token's keys go in the flat cache.
    places: Tensor,
    rows: Rows,
    /// Rows attended to, and queries of each, padded to the most that one row has.
    row_count: i64,
    queries: i64,
    /// `[row_count * queries]` to flat tokens; None where they are the same.
    pad: Option<Tensor>,
    /// `[N]` to padded places; None where they are the same.
    unpad: Option<Tensor>,
    /// Keys of a row that any query sees.
    length: i64,
    /// `[row_count, 1, group * queries, length]`, or 1 in place of all queries where each row has one.
    mask: Tensor,
}

impl FeedLayout {
    fn new(cache: &KvCache, feeds: &[Feed]) -> Self {
        let shape = cache.shape;
        let queries = feeds.iter().map(|feed| feed.ids.len()).max().unwrap_or(0);
        let longest = feeds.iter().map(|feed| feed.start + feed.ids.len()).max().unwrap_or(0);
        let length = KvCache::rounded(longest) as i64;
        let first = feeds.iter().map(|feed| feed.row).min().unwrap_or(0);
        let span = feeds.iter().map(|feed| feed.row + 1).max().unwrap_or(0) - first;
        // Copying a row costs about as much as one query's attention to it.
        let in_place = span == feeds.len() || (queries == 1 && span <= 2 * feeds.len());
        let row_count = if in_place { span } else { feeds.len() };

        let (mut ids, mut positions, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut pad = vec![0_i64; row_count * queries];
        let mut unpad = Vec::new();
        let mut last_seen = vec![0_i64; row_count * queries];
        for (index, feed) in feeds.iter().enumerate() {
            let slot = if in_place { feed.row - first } else { index };
            let before = feed.prefix.map_or(0, |prefix| prefix.ids.len());
            for (offset, id) in feed.ids.iter().enumerate() {
                let (place, padded) = (feed.start + offset, slot * queries + offset);
                pad[padded] = ids.len() as i64;
                unpad.push(padded as i64);
                last_seen[padded] = place as i64;
                ids.push(i64::from(*id));
                positions.push((before + place) as i64);
                let heads = feed.row as i64 * shape.kv_heads..(feed.row as i64 + 1) * shape.kv_heads;
                places.extend(heads.map(|head| head * cache.capacity + place as i64));
            }
        }
        let tensor = |values: &[i64]| Tensor::from_slice(values).to_device(cache.device);
        let aligned = unpad.len() == pad.len() && unpad.iter().enumerate().all(|(at, padded)| at as i64 == *padded);
        let limits = tensor(&last_seen).view([row_count as i64, 1, queries as i64, 1]);
        let hidden = Tensor::arange(length, (Kind::Int64, cache.device)).gt_tensor(&limits);
        let mask = hidden.zeros_like().to_kind(cache.kind).masked_fill(&hidden, f64::NEG_INFINITY);
        let selected: Vec<i64> = feeds.iter().map(|feed| feed.row as i64).collect();
        Self {
            ids: tensor(&ids),
            positions: tensor(&positions),
            places: tensor(&places),
            rows: if in_place {
                Rows::Run { start: first as i64, count: span as i64 }
            } else {
                Rows::Some(tensor(&selected))
            },
            row_count: row_count as i64,
            queries: queries as i64,
            pad: (!aligned).then(|| tensor(&pad)),
            unpad: (!aligned).then(|| tensor(&unpad)),
            length,
            mask: if queries > 1 { mask.repeat([1, 1, shape.group(), 1]) } else { mask },
        }
    }

    /// Attention of the new tokens' queries `[N, heads, D]` to their rows: the result `[N, heads, D]` and the
    /// logarithm of the sum of exponentials `[N, heads, 1]`. The query heads of one key head lie one after the other
    /// along the query axis, so keys are read once for all of them.
    fn attend_rows(&self, shape: &KvShape, q: &Tensor, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        let (kv_heads, group, width) = (shape.kv_heads, shape.group(), shape.head_dim);
        let q = self.pad.as_ref().map_or_else(|| q.shallow_clone(), |pad| q.index_select(0, pad));
        let q = q.view([self.row_count, self.queries, kv_heads, group, width]).permute([0, 2, 3, 1, 4]).reshape([
            self.row_count,
            kv_heads,
            group * self.queries,
            width,
        ]);
        let (out, lse) = attend_with_lse(&q, k, v, Some(&self.mask));
        let unfold = |x: &Tensor, width: i64| {
            let x = x
                .reshape([self.row_count, kv_heads, group, self.queries, width])
                .permute([0, 3, 1, 2, 4])
                .reshape([self.row_count * self.queries, shape.heads, width]);
            self.unpad.as_ref().map_or_else(|| x.shallow_clone(), |unpad| x.index_select(0, unpad))
        };
        (unfold(&out, width), unfold(&lse, 1))
    }
}

/// The new tokens, flat, that begin with one prefix: `None` for all of them.
struct Sharers<'a> {
    prefix: &'a Prefix,
    tokens: Option<Tensor>,
}

fn sharers<'a>(feeds: &[Feed<'a>], device: Device) -> Vec<Sharers<'a>> {
    let mut groups: Vec<(&Prefix, Vec<i64>)> = Vec::new();
    let mut at = 0;
    for feed in feeds {
        let tokens = at..at + feed.ids.len() as i64;
        at = tokens.end;
        if let Some(prefix) = feed.prefix {
            match groups.iter_mut().find(|(known, _)| std::ptr::eq(*known, prefix)) {
                Some((_, members)) => members.extend(tokens),
                None => groups.push((prefix, tokens.collect())),
            }
        }
    }
    let index = |members: &[i64]| (members.len() as i64 != at).then(|| Tensor::from_slice(members).to_device(device));
    groups.iter().map(|(prefix, members)| Sharers { prefix, tokens: index(members) }).collect()
}

impl Sharers<'_> {
    /// Attention of all tokens' queries `[N, heads, D]` to the prefix, in one product: result and logarithm as in
    /// [`FeedLayout::attend_rows`], for the sharing tokens only.
    fn attend(&self, shape: &KvShape, layer: usize, q: &Tensor) -> (Tensor, Tensor) {
        let (kv_heads, group, width) = (shape.kv_heads, shape.group(), shape.head_dim);
        let q = self.tokens.as_ref().map_or_else(|| q.shallow_clone(), |tokens| q.index_select(0, tokens));
        let count = q.size()[0];
        let q = q.view([count, kv_heads, group, width]).transpose(0, 1).reshape([1, kv_heads, count * group, width]);
        let [k, v] = &self.prefix.layers[layer];
        let (out, lse) = attend_with_lse(&q, k, v, None);
        let unfold = |x: &Tensor, width: i64| {
            x.reshape([kv_heads, count, group, width]).transpose(0, 1).reshape([count, shape.heads, width])
        };
        (unfold(&out, width), unfold(&lse, 1))
    }

    /// Merges the prefix's share into the rows' share: one softmax over both.
    fn merge(&self, shape: &KvShape, layer: usize, q: &Tensor, own: (Tensor, Tensor)) -> (Tensor, Tensor) {
        let (own_out, own_lse) = own;
        let (out, lse) = self.attend(shape, layer, q);
        let lerp = |own_out: &Tensor, own_lse: &Tensor| own_out.lerp_tensor(&out, &(&lse - own_lse).sigmoid());
        match &self.tokens {
            None => (lerp(&own_out, &own_lse), own_lse),
            Some(tokens) => {
                let merged = lerp(&own_out.index_select(0, tokens), &own_lse.index_select(0, tokens));
                (own_out.index_copy(0, tokens, &merged), own_lse)
            }
        }
    }
}

/// Computes new tokens, in the order of `feeds`, and keeps their keys and values. Each row occurs at most once and must
/// have the capacity. With `want_hidden` the result is the tokens' states before the final norm, `[N, hidden]`;
/// without, the last block is left as soon as its keys and values are kept, and there is no result.
pub(crate) fn feed(
    model: &Model,
    active: &Active,
    cache: &KvCache,
    feeds: &[Feed],
    want_hidden: bool,
    mut capture: Option<&mut Capture>,
) -> Option<Tensor> {
    let shape = cache.shape;
    let layout = FeedLayout::new(cache, feeds);
    let sharers = sharers(feeds, cache.device);
    let rope = model.rope(&layout.positions);
    let mut x = model.embed(&layout.ids);
    for layer in 0..model.layers() {
        let acting = active.layer(layer, &x, capture.as_deref_mut());
        let (q, k, v) = model.qkv(layer, &x, &rope, &acting);
        cache.write(layer, 0, &k, &layout);
        cache.write(layer, 1, &v, &layout);
        if !want_hidden && layer + 1 == model.layers() {
            return None;
        }
        let own = layout.attend_rows(&shape, &q, &cache.read(layer, 0, &layout), &cache.read(layer, 1, &layout));
        let (attended, _) = sharers.iter().fold(own, |own, sharers| sharers.merge(&shape, layer, &q, own));
        x = model.finish(layer, &x, &attended.reshape([-1, shape.heads * shape.head_dim]), &acting);
    }
    Some(x)
}
