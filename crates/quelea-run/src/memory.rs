//! Whether a run fits into this machine, before it is tried.

use crate::error::RequestError;

/// The vectors of a run that live on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryDemand {
    /// Parameters of the model.
    pub dimensions: usize,
    /// Workers that live here.
    pub workers: usize,
    /// Whether they compute on a copy of their parameters.
    pub snapshot: bool,
    /// Vectors that each of them keeps for its codec.
    pub kept: usize,
    /// Vectors of the servers that live here, all of them together.
    pub servers: usize,
}

impl MemoryDemand {
    /// Refuses what does not fit into `available` bytes.
    pub fn check(&self, available: Option<f64>) -> Result<(), RequestError> {
        let (MemoryDemand { dimensions, workers, .. }, needed) = (self, self.bytes());
        match available {
            Some(available) if needed > available => Err(RequestError::Conflict(format!(
                "{workers} worker{} with a model of {dimensions} parameters: the run needs about \
                 {} GB of memory, this machine has {} GB free; use fewer workers or a smaller model",
                if *workers == 1 { "" } else { "s" },
                gigabytes(needed),
                gigabytes(available)
            ))),
            _ => Ok(()),
        }
    }

    /// Every worker has its parameters, a gradient, perhaps a copy to compute on, one vector on its
    /// way, two that it reports at the end, and what its codec keeps; all servers together have
    /// three; the start and the result are there too. Fitted to measured runs: as much in threads, 0.7 to 0.9 of it in the
    /// virtual cluster.
    fn bytes(&self) -> f64 {
        let of_worker = 5 + usize::from(self.snapshot) + self.kept;
        let vectors = self.workers * of_worker + self.servers + 2;
        4.0 * self.dimensions as f64 * vectors as f64
    }
}

fn gigabytes(bytes: f64) -> String {
    if bytes < 1e10 { format!("{:.1}", bytes / 1e9) } else { format!("{:.0}", bytes / 1e9) }
}

/// Bytes that may be taken without swapping, where the system tells.
pub fn available() -> Option<f64> {
    free(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Of Linux's `/proc/meminfo`.
fn free(meminfo: &str) -> Option<f64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_both_numbers() {
        let vectors = MemoryDemand {
            dimensions: 1_000_000_000,
            workers: 2,
            snapshot: false,
            kept: 0,
            servers: 0,
        };
        assert_eq!(vectors.check(Some(48e9)), Ok(()));
        assert_eq!(vectors.check(None), Ok(()));
        let message = vectors.check(Some(31.4e9)).expect_err("refused").to_string();
        let expected = "needs about 48 GB of memory, this machine has 31 GB free";
        assert!(message.contains(expected), "{message}");
        assert!(MemoryDemand { servers: 3, ..vectors }.check(Some(48e9)).is_err());
        // Two public copies of each of two workers.
        assert!(MemoryDemand { kept: 2, ..vectors }.check(Some(63e9)).is_err());
        assert!(MemoryDemand { kept: 2, ..vectors }.check(Some(64e9)).is_ok());
    }

    #[test]
    fn the_memory_of_linux_is_read() {
        let text = "MemTotal:  8000 kB\nMemFree:  1 kB\nMemAvailable:    4000 kB\n";
        assert_eq!(free(text), Some(4_096_000.0));
        assert_eq!(free("MemTotal: 1 kB"), None);
    }
}
