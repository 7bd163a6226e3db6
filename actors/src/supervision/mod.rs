//! Supervision: children that are restarted when they fail, up to an intensity, and handles that outlive them.
//!
//! A restarted actor has lost its mailbox. So nobody keeps an `ActorRef`: one keeps a [`Child`], which knows the actor
//! that currently plays the part, and whose calls end in a reply or in a [`CallError`] that says why there is none,
//! never in silence. Whoever called does the re-issuing: it alone knows whether the work is still wanted.

mod child;
mod supervisor;

pub(crate) use child::{CallError, Child};
pub use supervisor::{Intensity, StopCause};
pub(crate) use supervisor::{Supervision, start};
