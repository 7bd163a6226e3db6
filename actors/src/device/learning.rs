//! Learners and gates on the LibTorch thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use trace_policy::gate_trainer::{GateConfig, GateExample, GateMetrics, train_gates};
use trace_policy::gates::{Composition, Router};
use trace_policy::learner::{Learner, LearnerConfig, UpdateMetrics};
use trace_policy::lora::LoraConfig;
use trace_policy::rows::{TrainGroup, TrainRow};
use trace_policy::score::score;

use super::DeviceState;
use super::arms::{LoadedArm, Variant};
use crate::plan::{Acting, AdapterShape, ArmSpec};

/// Name of the file that a learner's state is in: where it is, there is a checkpoint.
const STATE_FILE: &str = "learner.safetensors";

/// Key of the runtime's part of a learner's notes.
const LEDGER_NOTE: &str = "ledger";

/// A learner in memory.
pub(super) struct LearnerSlot {
    learner: Learner,
    published: Rc<LoadedArm>,
}

impl LearnerSlot {
    /// What was published last.
    pub(super) fn published(&self) -> Rc<LoadedArm> {
        Rc::clone(&self.published)
    }
}

/// Where a learner lives, and what it begins as.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LearnerHome {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) adapter: AdapterShape,
    pub(crate) seed: u64,
}

impl DeviceState {
    /// Opens a learner: restores its checkpoint where there is one and returns the note that was saved with it.
    pub(crate) fn open_learner(&mut self, home: &LearnerHome) -> Result<Option<String>, String> {
        let AdapterShape { rank, alpha, first_layer } = home.adapter;
        let layers = self.model.layers();
        if first_layer as usize >= layers {
            return Err(format!(
                "learner {} is to adapt the blocks from {first_layer} on; the model has {layers}, counted from 0",
                home.name
            ));
        }
        let config = LoraConfig::all_linears(rank, alpha).from_layer(first_layer as usize, layers);
        let (learner, note) = match home.folder.join(STATE_FILE).exists() {
            true => {
                let loaded = Learner::load(&home.folder, self.model.config(), self.model.device());
                let (learner, mut notes) = loaded.map_err(|e| e.to_string())?;
                let found = learner.adapter().config();
                if *found != config {
                    let shape = |c: &LoraConfig| {
                        let first = c.layers.iter().flatten().next().unwrap_or(&0);
                        format!("rank {}, alpha {} and blocks from {first} on", c.rank, c.alpha)
                    };
                    let (begun, asked) = (shape(found), shape(&config));
                    return Err(format!("learner {} was begun with {begun}; asked is {asked}", home.name));
                }
                let note = notes.remove(LEDGER_NOTE);
                (learner, Some(note.ok_or_else(|| format!("{} has no ledger", home.folder.display()))?))
            }
            false => (Learner::new(&self.model, config, home.seed).map_err(|e| e.to_string())?, None),
        };
        let published = publication(&learner, 0);
        self.learners.insert(home.name.clone(), LearnerSlot { learner, published });
        Ok(note)
    }

    /// True where a learner is open. One whose job panicked is not.
    pub(crate) fn has_learner(&self, name: &str) -> bool {
        self.learners.contains_key(name)
    }

    /// Lets go of a learner.
    pub(crate) fn close_learner(&mut self, name: &str) {
        self.learners.remove(name);
    }

    /// One batch: as many optimiser steps as the configuration makes of these groups.
    pub(crate) fn update(
        &mut self,
        name: &str,
        groups: &[TrainGroup],
        config: &LearnerConfig,
    ) -> Result<UpdateMetrics, String> {
        let Self { learners, model, .. } = self;
        let slot = learners.get_mut(name).ok_or_else(|| not_open(name))?;
        slot.learner.update(model, groups, config).map_err(|e| e.to_string())
    }

    /// Saves a learner with its ledger, atomically.
    pub(crate) fn checkpoint(&self, home: &LearnerHome, ledger: String) -> Result<(), String> {
        let slot = self.learners.get(&home.name).ok_or_else(|| not_open(&home.name))?;
        std::fs::create_dir_all(&home.folder).map_err(|e| format!("{}: {e}", home.folder.display()))?;
        let notes = BTreeMap::from([(LEDGER_NOTE.to_owned(), ledger)]);
        slot.learner.save(&home.folder, &notes).map_err(|e| e.to_string())
    }

    /// Publishes a learner's adapter as it is now: what acts from the next wave on, unchanged by later updates.
    pub(crate) fn publish(&mut self, name: &str, version: u32) -> Result<(), String> {
        let slot = self.learners.get_mut(name).ok_or_else(|| not_open(name))?;
        slot.published = publication(&slot.learner, version);
        Ok(())
    }

    /// Writes what a learner published last as a PEFT adapter; returns its digest.
    pub(crate) fn export(&self, name: &str, folder: &Path) -> Result<String, String> {
        let slot = self.learners.get(name).ok_or_else(|| not_open(name))?;
        match &slot.published.variant {
            Variant::Adapter(lora) => {
                std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
                lora.save(folder).and_then(|()| lora.digest()).map_err(|e| e.to_string())
            }
            Variant::Base | Variant::Routed(_) => Err(format!("learner {name} has published no adapter")),
        }
    }

    /// Teacher-forced log-probs of each row's sampled tokens.
    pub(crate) fn score(
        &self,
        acting: &Acting,
        rows: &[TrainRow],
        temperature: f64,
        max_tokens: usize,
    ) -> Result<Vec<Vec<f32>>, String> {
        let arm = self.arm(acting).map_err(|e| e.to_string())?;
        score(&self.model, &arm.active(), rows, temperature, max_tokens).map_err(|e| e.to_string())
    }

    /// Trains new gates over an arm's adapters and saves the composition in the arm's folder.
    pub(crate) fn train_gates(
        &self,
        arm: &ArmSpec,
        examples: &[GateExample],
        config: &GateConfig,
        tell: impl FnMut(u32, GateMetrics),
    ) -> Result<(), String> {
        let folder = arm.composition.as_ref().ok_or_else(|| format!("{} names no folder for its gates", arm.name))?;
        let (shape, device) = (self.model.config(), self.model.device());
        let members = self.members(arm)?;
        let router = Router::new(shape, members.len(), device);
        let composition = Composition::new(shape, members, router).map_err(|e| e.to_string())?;
        train_gates(&self.model, &composition, examples, config, tell).map_err(|e| e.to_string())?;
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        composition.save(folder).map_err(|e| e.to_string())
    }
}

fn publication(learner: &Learner, version: u32) -> Rc<LoadedArm> {
    Rc::new(LoadedArm { version, variant: Variant::Adapter(learner.adapter().snapshot()) })
}

fn not_open(name: &str) -> String {
    format!("learner {name} is not open")
}
