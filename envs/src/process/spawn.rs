//! Starts processes that end with this one.
//!
//! The kernel's "kill me when my parent dies" follows the *thread* that started the process, not the program. So all
//! are started by one thread that lives as long as the program does.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// How a process is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The program: a path, or a name to be looked up in `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Where it runs; this process's folder where absent.
    pub folder: Option<PathBuf>,
    /// True where it gets none of this process's environment variables.
    pub clear_variables: bool,
    /// Variables that it gets in any case.
    pub variables: Vec<(String, String)>,
}

impl Launch {
    /// A program without arguments, in this process's folder and with its variables.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            folder: None,
            clear_variables: false,
            variables: Vec::new(),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        if self.clear_variables {
            command.env_clear();
        }
        command.envs(self.variables.iter().map(|(k, v)| (k, v)));
        // A group of its own: a Ctrl-C at the terminal reaches us, and a kill of the group reaches its descendants.
        command.process_group(0);
        let parent = std::process::id();
        // SAFETY: the closure runs between fork and exec and makes only the async-signal-safe calls prctl and getppid;
        // building an error from a code does not allocate.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the request to the kernel was made.
                if libc::getppid() as u32 != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        command
    }
}

type Order = (Launch, Sender<io::Result<Child>>);

/// Starts a process whose three standard streams are pipes.
pub(super) fn spawn(launch: &Launch) -> io::Result<Child> {
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::Builder::new()
            .name("env-process-starter".to_string())
            .spawn(move || {
                for (launch, answer) in inbox {
                    // Who no longer waits for the answer gets a child that is dropped: its input ends, and so does it.
                    let _ = answer.send(launch.command().spawn());
                }
            })
            .expect("a thread can be started");
        orders
    });
    let gone = || io::Error::other("the thread that starts processes has ended");
    let (answer, wait) = channel();
    starter.send((launch.clone(), answer)).map_err(|_| gone())?;
    wait.recv().map_err(|_| gone())?
}
