//! The actor that drives waves, one at a time.

use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};

use super::wave::{Crew, WaveError, WaveStats, drive};
use crate::environments::EnvMessage;
use crate::plan::WavePlan;

pub(crate) enum GeneratorMessage {
    /// Drive a wave to its end. `issue` counts how often it was handed out.
    Drive { plan: Arc<WavePlan>, issue: u32, reply: RpcReplyPort<Result<WaveStats, WaveError>> },
}

pub(crate) struct RolloutGenerator;

impl Actor for RolloutGenerator {
    type Msg = GeneratorMessage;
    type State = Arc<Crew>;
    type Arguments = Arc<Crew>;

    async fn pre_start(&self, _: ActorRef<GeneratorMessage>, crew: Arc<Crew>) -> Result<Arc<Crew>, ActorProcessingErr> {
        // The episodes of a generator before this one nobody will go on with.
        let _ = crew.environments.tell(EnvMessage::CloseAll).await;
        Ok(crew)
    }

    async fn handle(
        &self,
        _: ActorRef<GeneratorMessage>,
        message: GeneratorMessage,
        crew: &mut Arc<Crew>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GeneratorMessage::Drive { plan, issue, reply } => {
                let result = drive(crew, &plan, issue).await;
                // Whoever asked may have been stopped meanwhile.
                let _ = reply.send(result);
            }
        }
        Ok(())
    }
}
