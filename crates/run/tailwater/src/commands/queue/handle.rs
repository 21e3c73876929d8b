//! `queue receive --exec`: a command handles each message, which stays invisible for as long as that runs.

use std::fmt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal as ProcessSignal, kill_process_group};
use tailwater_client::queue::{Message, Queue, Unhandled};
use tailwater_env::Env;
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::ReceiveArgs;
use super::client::{Client, explained};
use crate::output;

/// How long a receive waits where it goes on for ever, by default: as long as it may.
const WAIT_S: u32 = 20;

/// How long a handler may take to end once it was interrupted.
const ENDING_DEADLINE: Duration = Duration::from_secs(10);

/// Pause before a node that is away is asked again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Receives messages and runs `command` for each, one after the other: those behind one that takes long would become
/// visible meanwhile. It ends when it has handled as many as are wanted, or there are none; if nobody says how many,
/// never, whether or not a node is away for a while.
pub async fn work_off(client: &Client, receive: &ReceiveArgs, command: &str) -> anyhow::Result<()> {
    let mut queue = client.endpoint().queue(&receive.name).await.map_err(explained)?;
    let is_endless = receive.count.is_none();
    let wait_s = receive.wait.unwrap_or(if is_endless { WAIT_S } else { 0 });
    anyhow::ensure!(
        !is_endless || wait_s > 0,
        "without -n it goes on for ever, asking again and again: --wait has to be 1 or more"
    );
    queue = queue.with_wait(Duration::from_secs(wait_s.into()));
    if let Some(seconds) = receive.visibility_timeout {
        queue = queue.with_visibility_s(seconds);
    }
    let wanted = receive.count.unwrap_or(usize::MAX);
    let (mut received, mut failed) = (0_usize, 0_usize);
    // From here on a Ctrl-C ends this by its own hand: a message that is handled is given back.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut interrupted = false;
    while received < wanted && !interrupted {
        let stop = async {
            interrupts.recv().await;
            interrupted = true;
        };
        let mut messages = match queue.receive_until(1, stop).await {
            Err(error) if is_endless && error.is_retriable() => {
                eprintln!("tailwater: {error}; trying again");
                Env::real().sleep(RETRY_PAUSE).await;
                continue;
            }
            received => received.map_err(explained)?,
        };
        let message = match messages.pop() {
            Some(message) => message,
            None if is_endless => continue,
            None => break,
        };
        if interrupted {
            // It was on its way.
            give_back(&queue, &message).await;
            break;
        }
        received += 1;
        let missed = |error: &tailwater_client::Error| {
            eprintln!("tailwater: the message may become visible while it is handled: {error}");
        };
        let handled = run(&message, command, &mut interrupts, &mut interrupted);
        match queue.handle_telling(&message, handled, missed).await {
            Ok(()) => {}
            Err(Unhandled::NotDeleted((), error)) if is_endless && error.is_retriable() => {
                eprintln!(
                    "tailwater: {} was handled and comes again, as it is not deleted: {error}",
                    message.id
                );
            }
            Err(Unhandled::NotDeleted((), error)) => return Err(explained(error)),
            Err(Unhandled::Failed(why)) => {
                failed += 1;
                eprintln!("tailwater: {} was not handled ({why}) and is visible again", message.id);
            }
        }
    }
    let (counted, were) = (output::counted(received as u64, "message"), output::were(failed as u64));
    anyhow::ensure!(failed == 0, "{failed} of {counted} {were} not handled");
    Ok(())
}

/// Makes a message visible that nobody handles any more.
async fn give_back(queue: &Queue, message: &Message) {
    match queue.change_visibility(message, 0).await {
        Ok(()) => eprintln!("tailwater: {} was not handled (interrupted) and is visible again", message.id),
        Err(error) => eprintln!(
            "tailwater: {} was not handled (interrupted) and comes again after its timeout: {error}",
            message.id
        ),
    }
}

/// Why a message was not handled.
enum HandlerFailure {
    Start(std::io::Error),
    Ended(ExitStatus),
    /// By Ctrl-C, which ends the command too.
    Interrupted,
}

impl fmt::Display for HandlerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start(error) => write!(f, "sh can't be run: {error}"),
            Self::Ended(status) => write!(f, "{status}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// Runs `command` in a shell, the message's body on its standard input. A Ctrl-C is passed on to it and to all that it
/// has started, and it may end by itself: if it succeeds all the same, it has handled the message.
async fn run(
    message: &Message,
    command: &str,
    interrupts: &mut Signal,
    interrupted: &mut bool,
) -> Result<(), HandlerFailure> {
    let group = message.answer["Attributes"]["MessageGroupId"].as_str().unwrap_or_default();
    let mut child = tokio::process::Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::piped())
        .env("TAILWATER_MESSAGE_ID", &message.id)
        .env("TAILWATER_RECEIVE_COUNT", message.receives.to_string())
        .env("TAILWATER_GROUP", group)
        // A group of its own, so that a signal reaches what the shell has started, and a terminal's does so once.
        .process_group(0)
        .spawn()
        .map_err(HandlerFailure::Start)?;
    let mut stdin = child.stdin.take().expect("piped");
    let write = async {
        // A command may end without reading all of it.
        let _ = stdin.write_all(message.body.as_bytes()).await;
        drop(stdin);
    };
    let handled = async { futures::join!(write, child.wait()).1 };
    let status = tokio::select! {
        biased;
        _ = interrupts.recv() => None,
        status = handled => Some(status),
    };
    let status = match status {
        Some(status) => status,
        None => {
            *interrupted = true;
            end(&mut child, interrupts).await
        }
    };
    match status.map_err(HandlerFailure::Start)? {
        status if status.success() => Ok(()),
        _ if *interrupted => Err(HandlerFailure::Interrupted),
        status => Err(HandlerFailure::Ended(status)),
    }
}

/// Interrupts a handler, and kills it if it does not end, or if a second Ctrl-C comes.
async fn end(child: &mut Child, interrupts: &mut Signal) -> std::io::Result<ExitStatus> {
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let tell = |signal| group.map(|group| kill_process_group(group, signal));
    tell(ProcessSignal::INT);
    tokio::select! {
        status = child.wait() => return status,
        () = Env::real().sleep(ENDING_DEADLINE) => {}
        _ = interrupts.recv() => {}
    }
    tell(ProcessSignal::KILL);
    child.wait().await
}
