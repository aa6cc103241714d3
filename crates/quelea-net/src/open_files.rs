//! How many files and sockets this process may have open: raised as far as it may be, and checked
//! against what a run needs before it begins.

use crate::error::NetError;
use crate::rendezvous::listener::VISITORS;

/// What every rank has open for itself: the queue of its events, and what wakes it.
const OF_RANK: u64 = 4;
/// What a process has open besides: standard streams, listeners, files of the run, data.
const BESIDES: u64 = 32;
/// What a process that listens keeps for visitors: a flood of them takes nothing from those who belong to
/// the run.
const OF_VISITORS: u64 = VISITORS as u64;
/// Of every joined worker: its connection.
const OF_JOINED: u64 = 1;

/// Who lives in a process, and with whom it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenFiles {
    /// Ranks of this process.
    pub(crate) here: usize,
    /// Ranks of all other processes.
    pub(crate) elsewhere: usize,
    /// Processes whose control connections end here.
    pub(crate) joined: usize,
}

impl OpenFiles {
    fn needed(&self) -> u64 {
        let [here, elsewhere, joined] =
            [self.here, self.elsewhere, self.joined].map(|count| count as u64);
        let visitors = if elsewhere > 0 { OF_VISITORS } else { 0 };
        here * (OF_RANK + elsewhere) + joined * OF_JOINED + visitors + BESIDES
    }

    /// Raises the limit, and refuses a run that needs more.
    pub(crate) fn reserve(&self) -> Result<(), NetError> {
        let needed = self.needed();
        match raised_limit() {
            Some(limit) if limit < needed => Err(NetError::Setup(format!(
                "this process needs about {needed} open files and connections and may have {limit}; \
                 raise the limit (`ulimit -Hn`), or use fewer workers"
            ))),
            _ => Ok(()),
        }
    }
}

/// Raises the limit of this process to what it may be raised to; what it is then.
#[cfg(unix)]
fn raised_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives until the call returns.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return None;
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    let raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
    Some(if raised { limit.rlim_cur } else { before })
}

#[cfg(not(unix))]
fn raised_limit() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_needs_more_than_any_system_allows_is_refused_with_both_numbers() {
        let few = OpenFiles { here: 1, elsewhere: 3, joined: 0 };
        assert_eq!(few.needed(), 4 + 3 + 32 + 256);
        few.reserve().expect("every system allows so many");
        let many = OpenFiles { here: 1 << 20, elsewhere: 1 << 20, joined: 0 };
        let text = many.reserve().expect_err("no system allows so many").to_string();
        assert!(text.starts_with("this process needs about 10995158"), "{text}");
    }
}
