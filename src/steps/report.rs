//! `report.html`, from the files of the run.

use super::{Session, StepError};
use crate::record::write_whole;
use crate::report::{Inputs, render};

pub(super) fn run(session: &mut Session) -> Result<u64, StepError> {
    let inputs = Inputs::read(&session.config.run.name, session.dir.root())?;
    write_whole(&session.dir.report(), render(&inputs).as_bytes())?;
    Ok(0)
}
