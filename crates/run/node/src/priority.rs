//! Who is given a processor first.
//!
//! Applications on a node's host may read with hundreds of processes, and take all the processor time that there is.
//! An append would then wait behind them at each step that it takes, at the node and at the cells. So these go first:
//! their need is small, and others' waits for it.

/// The niceness of a node, of its window and of its cache backends, where nothing else is said.
pub const NICE: i32 = -10;

/// Gives this process, its threads that are started from here on, and its children the niceness `nice`, from -20, which
/// goes first, to 19; 0 leaves it as it is. So does a process that was started with another one than 0, which somebody
/// has chosen, and one that may not: it goes on with what it has, after a line in the log.
pub fn prefer(nice: i32) {
    let now = rustix::process::getpriority_process(None).unwrap_or(0);
    if nice == 0 || now != 0 {
        return;
    }
    if let Err(why) = rustix::process::setpriority_process(None, nice) {
        tracing::info!(
            nice,
            %why,
            "this process has no priority over others, and appends wait where those take all processors; \
             `tailwater doctor` says what to set"
        );
    }
}
