//! What acts on top of the base in a forward pass: nothing, one adapter, or adapters behind gates.

use tch::Tensor;

use crate::gates::{Capture, Composition};
use crate::lora::{Lora, LoraLayer, Module};

/// The variant of the policy that a pass computes.
#[derive(Debug, Clone, Copy)]
pub enum Active<'a> {
    /// The base alone.
    Base,
    /// The base with one adapter on every token.
    Adapter(&'a Lora),
    /// The base with the adapter that the gates choose, per token and layer.
    Routed(&'a Composition),
}

impl<'a> Active<'a> {
    /// What acts in block `layer` on the block's input `x: [N, hidden]`. Gates choose here, once per block; `capture`
    /// keeps what it asks for.
    pub fn layer(&self, layer: usize, x: &Tensor, capture: Option<&mut Capture>) -> LayerActive<'a> {
        let slots = match self {
            Self::Routed(composition) if composition.acts(layer) => Some(composition.slots(layer, x)),
            Self::Base | Self::Adapter(_) | Self::Routed(_) => None,
        };
        if let Some(capture) = capture {
            if capture.keep_inputs {
                capture.block_inputs.push(x.detach());
            }
            capture.slots.extend(slots.as_ref().map(Tensor::shallow_clone));
        }
        match (*self, slots) {
            (Self::Routed(composition), Some(slots)) => {
                LayerActive::Routed { composition, layer, chosen: composition.chosen(&slots) }
            }
            (Self::Adapter(lora), _) => LayerActive::Adapter(lora.layer(layer)),
            _ => LayerActive::Base,
        }
    }
}

/// What acts in one block of one pass.
#[derive(Debug)]
pub enum LayerActive<'a> {
    /// Nothing.
    Base,
    /// One adapter's pairs of this block.
    Adapter(&'a LoraLayer),
    /// Packed adapters and, per token, which of their columns count.
    Routed {
        /// The adapters.
        composition: &'a Composition,
        /// The block.
        layer: usize,
        /// `[N, packed columns]`, true where a column belongs to the token's slot.
        chosen: Tensor,
    },
}

impl LayerActive<'_> {
    /// Adds what acts on `module`, for inputs `x: [N, in]`, to the base's outputs `y: [N, out]`.
    pub fn add(&self, module: Module, x: &Tensor, y: Tensor) -> Tensor {
        match self {
            Self::Base => y,
            Self::Adapter(layer) => layer.add(module, x, y),
            Self::Routed { composition, layer, chosen } => composition.add(*layer, module, chosen, x, y),
        }
    }
}
