//! The policy server in this process: continuous batching on the LibTorch thread.

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::protocol::{PolicyFailure, PolicyMessage, TurnRequest, TurnResult};
use crate::device::{DeviceError, DeviceHandle, Subject};

/// Samples on a device. It remembers nothing itself: a wave's state is on the device, under the wave's name.
pub(crate) struct EmbeddedServer;

impl Actor for EmbeddedServer {
    type Msg = PolicyMessage;
    type State = DeviceHandle;
    type Arguments = DeviceHandle;

    async fn pre_start(
        &self,
        _: ActorRef<PolicyMessage>,
        device: DeviceHandle,
    ) -> Result<DeviceHandle, ActorProcessingErr> {
        // What a server before this one had begun, nobody will go on with.
        device.run(Subject::Nothing, |state| state.close_all_waves()).await?;
        Ok(device)
    }

    async fn handle(
        &self,
        _: ActorRef<PolicyMessage>,
        message: PolicyMessage,
        device: &mut DeviceHandle,
    ) -> Result<(), ActorProcessingErr> {
        // Whoever asked may have been stopped meanwhile: then nobody takes the replies.
        match message {
            PolicyMessage::Open { wave, acting, reply } => {
                let subject = Subject::Wave(wave.clone());
                let opened = device.run(subject, move |state| state.open_wave(wave, &acting)).await;
                let _ = reply.send(flatten(opened));
            }
            PolicyMessage::Advance { wave, requests, ended, reply } => {
                let _ = reply.send(advance(device, wave, requests, ended).await);
            }
            PolicyMessage::Close { wave } => {
                let subject = Subject::Wave(wave.clone());
                device.run(subject, move |state| state.close_wave(&wave)).await?;
            }
        }
        Ok(())
    }
}

/// Decodes slice by slice until a turn is finished, so that other jobs have their turn in between.
async fn advance(
    device: &DeviceHandle,
    wave: String,
    mut requests: Vec<TurnRequest>,
    mut ended: Vec<u64>,
) -> Result<Vec<TurnResult>, PolicyFailure> {
    loop {
        let (requests, ended) = (std::mem::take(&mut requests), std::mem::take(&mut ended));
        let (subject, its_wave) = (Subject::Wave(wave.clone()), wave.clone());
        let advanced = device.run(subject, move |state| state.advance(&its_wave, requests, &ended)).await;
        let advanced = flatten(advanced)?;
        if !advanced.turns.is_empty() || !advanced.under_way {
            return Ok(advanced.turns);
        }
    }
}

fn flatten<T>(out: Result<Result<T, PolicyFailure>, DeviceError>) -> Result<T, PolicyFailure> {
    out.unwrap_or_else(|error| Err(PolicyFailure::Failed(error.to_string())))
}
