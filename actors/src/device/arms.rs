//! Arms in memory: what acts on top of the base.

use std::rc::Rc;

use trace_policy::active::Active;
use trace_policy::gates::{Composition, Member};
use trace_policy::lora::Lora;

use super::DeviceState;
use crate::plan::{Acting, ArmSpec};
use crate::serving::PolicyFailure;

/// What acts on top of the base.
pub(super) enum Variant {
    /// Nothing.
    Base,
    /// One adapter.
    Adapter(Lora),
    /// Adapters behind gates.
    Routed(Composition),
}

/// An arm that can be sampled or scored with.
pub(super) struct LoadedArm {
    pub(super) version: u32,
    pub(super) variant: Variant,
}

impl LoadedArm {
    pub(super) fn active(&self) -> Active<'_> {
        match &self.variant {
            Variant::Base => Active::Base,
            Variant::Adapter(lora) => Active::Adapter(lora),
            Variant::Routed(composition) => Active::Routed(composition),
        }
    }
}

impl DeviceState {
    /// Loads an arm, or takes what a learner published last.
    pub(super) fn arm(&self, acting: &Acting) -> Result<Rc<LoadedArm>, PolicyFailure> {
        match acting {
            Acting::Arm(spec) => {
                let variant = self.variant(spec);
                let fault = |reason| PolicyFailure::Arm { name: spec.name.clone(), reason };
                Ok(Rc::new(LoadedArm { version: spec.version, variant: variant.map_err(fault)? }))
            }
            Acting::Learner(name) => match self.learners.get(name) {
                Some(slot) => Ok(slot.published()),
                None => Err(PolicyFailure::Arm { name: name.clone(), reason: "its learner is not open".to_owned() }),
            },
        }
    }

    fn variant(&self, spec: &ArmSpec) -> Result<Variant, String> {
        match (&spec.composition, spec.adapters.as_slice()) {
            (None, []) => Ok(Variant::Base),
            (None, [(_, folder)]) => {
                let lora = Lora::load(folder, self.model.config(), self.model.device()).map_err(|e| e.to_string())?;
                Ok(Variant::Adapter(lora))
            }
            (None, several) => Err(format!("{} adapters need gates, and no composition is given", several.len())),
            (Some(folder), _) => {
                let members = self.members(spec)?;
                let composition = Composition::load(folder, self.model.config(), members, self.model.device());
                Ok(Variant::Routed(composition.map_err(|e| e.to_string())?))
            }
        }
    }

    /// The adapters of an arm, in slot order.
    pub(super) fn members(&self, spec: &ArmSpec) -> Result<Vec<Member>, String> {
        let load = |(name, folder): &(String, std::path::PathBuf)| {
            let lora = Lora::load(folder, self.model.config(), self.model.device()).map_err(|e| e.to_string())?;
            Ok(Member { name: name.clone(), lora })
        };
        spec.adapters.iter().map(load).collect()
    }
}
