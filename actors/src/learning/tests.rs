//! What a learner's batch promises where its actor or its LibTorch job fails.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use tempfile::TempDir;
use trace_policy::learner::LearnerConfig;

use super::*;
use crate::batch::trajectory_batch;
use crate::device::fixture::device;
use crate::device::{DeviceHandle, LearnerHome, Subject};
use crate::log::UpdateLog;
use crate::logger::{LogArguments, LogWriter};
use crate::metrics::{Counter, Metrics};
use crate::pipeline::repeated;
use crate::plan::AdapterShape;
use crate::progress::Silent;
use crate::rows::SegmentRow;
use crate::samples::row;
use crate::supervision::{self, CallError, Child, Intensity, Supervision};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

struct School {
    supervision: Supervision,
    device: DeviceHandle,
    learner: Child<LearnerMessage>,
    metrics: Arc<Metrics>,
}

impl School {
    async fn open(dir: &Path) -> Self {
        let metrics = Arc::new(Metrics::default());
        let supervision =
            supervision::start(Intensity::default(), Arc::clone(&metrics), Arc::new(Silent)).await.unwrap();
        let log = LogArguments { run_dir: dir.to_owned(), metrics: Arc::clone(&metrics), progress: Arc::new(Silent) };
        let log = supervision.adopt("the log", move || (LogWriter, log.clone())).await.unwrap();
        let device = device(dir).await;
        let home = LearnerHome {
            name: "a".into(),
            folder: dir.join("learner"),
            adapter: AdapterShape { rank: 2, alpha: 2.0, first_layer: 0 },
            seed: 1,
        };
        let arguments = LearnerArguments { home, device: device.clone(), log, metrics: Arc::clone(&metrics) };
        let learner = supervision.adopt("learner a", move || (LearnerActor, arguments.clone())).await.unwrap();
        Self { supervision, device, learner, metrics }
    }

    async fn ask(&self, unit: &str, rows: RecordBatch) -> Result<Result<TrainOutcome, LearnError>, CallError> {
        let (unit, config) = (unit.to_owned(), Box::new(LearnerConfig { lr: 1e-2, ..LearnerConfig::default() }));
        self.learner.call(PATIENCE, |reply| LearnerMessage::Train { unit, rows, config, reply }).await
    }

    async fn train(&self, unit: &str, rows: RecordBatch) -> TrainOutcome {
        repeated(|| self.ask(unit, rows.clone())).await.unwrap().unwrap()
    }

    async fn digest(&self, dir: &Path) -> String {
        let folder = dir.join("adapter");
        self.learner.call(PATIENCE, |reply| LearnerMessage::Export { folder, reply }).await.unwrap().unwrap()
    }
}

fn batch(seed: u64) -> RecordBatch {
    let rated = |rollout, advantage| SegmentRow { advantage: Some(advantage), ..row(seed, rollout, 0.5) };
    trajectory_batch(&[rated(0, 1.0), rated(1, -1.0)]).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_fails_is_restored_and_its_batch_done_again_with_the_same_result() {
    let dir = TempDir::new().unwrap();
    let school = School::open(dir.path()).await;
    let expected = [school.train("u1", batch(3)).await, school.train("u2", batch(6)).await];
    let adapter = school.digest(dir.path()).await;
    school.supervision.shut_down().await;

    for millis in [0, 1, 3, 6, 12] {
        let dir = TempDir::new().unwrap();
        let school = School::open(dir.path()).await;
        let first = school.train("u1", batch(3)).await;
        // Once its LibTorch job panics, once the actor itself is killed: somewhere in the batch, or just after it.
        let _: Result<(), _> = school.device.run(Subject::Learner("a".into()), |_| panic!("out of memory")).await;
        let victim = school.learner.current().await.unwrap().get_cell();
        let killer = async {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            victim.kill();
        };
        let (second, ()) = tokio::join!(school.train("u2", batch(6)), killer);
        assert_eq!([first, second], expected, "after {millis} ms");
        assert_eq!(school.digest(dir.path()).await, adapter, "after {millis} ms");
        assert!(school.metrics.count(Counter::Restarts) >= 1);
        let updates = UpdateLog::read(dir.path()).unwrap();
        assert_eq!(updates.iter().map(|u| u.step).collect::<Vec<_>>(), [1, 1, 2, 2], "each row once");
        school.supervision.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_refused_changes_nothing() {
    let dir = TempDir::new().unwrap();
    let school = School::open(dir.path()).await;
    school.train("u1", batch(3)).await;
    let before = school.digest(dir.path()).await;
    // An id beyond the vocabulary: the policy library refuses the row.
    let mut alien = row(6, 0, 0.5);
    alien.advantage = Some(1.0);
    alien.columns.as_mut().unwrap().tokens[3] = 99;
    let refused = school.ask("u2", trajectory_batch(&[alien]).unwrap()).await;
    assert!(!matches!(refused, Ok(Ok(_))), "{refused:?}");
    assert_eq!(school.digest(dir.path()).await, before);
    let status = school.learner.call(PATIENCE, |reply| LearnerMessage::Status { reply }).await.unwrap();
    assert_eq!((status.version, status.consumed), (1, vec!["u1".to_owned()]));
    school.supervision.shut_down().await;
}
