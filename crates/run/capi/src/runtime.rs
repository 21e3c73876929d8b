//! The runtime that everything runs in: one for the process, from its first use on. Callers need not know of it.

use std::sync::OnceLock;

use tailwater_env::Env;
use tokio::runtime::Runtime;

use crate::limits::THREADS;
use crate::status::{NotDone, TailwaterStatus};

/// The runtime, and the world that it is.
pub(crate) struct LibraryRuntime {
    pub(crate) runtime: Runtime,
    pub(crate) env: Env,
    /// The process whose threads carry it. A child of it has none of them.
    process: u32,
}

static LIBRARY: OnceLock<Result<LibraryRuntime, String>> = OnceLock::new();

impl LibraryRuntime {
    fn start() -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("tailwater")
            .enable_all()
            .build()
            .map_err(|error| format!("the library's threads don't start: {error}"))?;
        let env = {
            let _within = runtime.enter();
            Env::real()
        };
        Ok(Self { runtime, env, process: std::process::id() })
    }
}

/// The process's runtime, which the first call starts.
pub(crate) fn library() -> Result<&'static LibraryRuntime, NotDone> {
    let library = LIBRARY.get_or_init(LibraryRuntime::start).as_ref();
    let library = library.map_err(|why| NotDone::new(TailwaterStatus::Internal, why.clone()))?;
    if library.process != std::process::id() {
        return Err(NotDone::new(
            TailwaterStatus::Forked,
            "this process was forked from one that used libtailwater, whose threads it does not have: fork before the \
             first use, or start processes anew (in Python: multiprocessing's \"spawn\" or \"forkserver\")",
        ));
    }
    Ok(library)
}

/// Frees what the caller owned; nothing in a forked child, where threads that it waits for may be missing.
///
/// # Safety
/// `owned` is null, or was made by `Box::into_raw` and is not used again.
pub(crate) unsafe fn free<T>(owned: *mut T) {
    if owned.is_null() {
        return;
    }
    let Ok(library) = library() else { return };
    // What is freed may stop tasks. A panic on that way has freed what it could.
    let _ = tailwater_env::panics::catch(|| {
        let _within = library.runtime.enter();
        // SAFETY: the caller says that it is a box's, and gives it up.
        drop(unsafe { Box::from_raw(owned) });
    });
}
