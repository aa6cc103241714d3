//! Whether a run fits into this machine, before it is tried.

use murmura_core::contract::Facts;

use crate::config::Config;
use crate::error::RequestError;

/// Refuses a plan whose vectors do not fit into `available` bytes, and servers without anything
/// to hold. All ranks are taken to live on this machine.
pub fn check(
    config: &Config,
    facts: &Facts,
    dimensions: usize,
    available: Option<f64>,
) -> Result<(), RequestError> {
    if config.servers() > dimensions {
        let problem = format!(
            "the model has {dimensions} parameters, so that some servers would hold nothing; use \
             at most {dimensions}"
        );
        return Err(RequestError::field("cluster.servers", config.servers(), problem));
    }
    let needed = bytes(config, facts, dimensions);
    match available {
        Some(available) if needed > available => Err(RequestError::Conflict(format!(
            "{} workers with a model of {dimensions} parameters: the run needs about {} GB of \
             memory, this machine has {} GB free; use fewer workers or a smaller model",
            config.workers,
            gigabytes(needed),
            gigabytes(available)
        ))),
        _ => Ok(()),
    }
}

/// What the vectors of a run take: every worker has its parameters, a gradient, perhaps a copy to
/// compute on, one vector on its way, and two that it reports at the end; all servers together
/// have three; the start and the result are there too. Runs were measured to take as much in
/// threads, and three quarters of it in the virtual cluster.
fn bytes(config: &Config, facts: &Facts, dimensions: usize) -> f64 {
    let of_worker = 5 + usize::from(facts.snapshot);
    let of_servers = if config.servers() > 0 { 3 } else { 0 };
    let vectors = config.workers * of_worker + of_servers + 2;
    4.0 * dimensions as f64 * vectors as f64
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
    use crate::config::source::parse;

    fn refusal(text: &str, dimensions: usize, available: f64) -> Option<String> {
        let config = Config::read(parse(text).expect("TOML"), &[], None).expect("good");
        let refused = check(&config, &config.facts(), dimensions, Some(available));
        refused.err().map(|error| error.to_string())
    }

    #[test]
    fn a_run_that_does_not_fit_is_refused_with_both_numbers() {
        let text = "workers = 2\nalgorithm.name = \"allreduce\"";
        assert_eq!(refusal(text, 1_000_000_000, 48e9), None);
        let message = refusal(text, 1_000_000_000, 31.4e9).expect("refused");
        let expected = "needs about 48 GB of memory, this machine has 31 GB free";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn a_server_without_parameters_is_refused() {
        assert_eq!(refusal("cluster.servers = 31", 31, 1e9), None);
        let message = refusal("cluster.servers = 32", 31, 1e9).expect("refused");
        assert!(message.starts_with("`cluster.servers` = 32: the model has 31 parameters"));
    }

    #[test]
    fn the_memory_of_linux_is_read() {
        let text = "MemTotal:  8000 kB\nMemFree:  1 kB\nMemAvailable:    4000 kB\n";
        assert_eq!(free(text), Some(4_096_000.0));
        assert_eq!(free("MemTotal: 1 kB"), None);
    }
}
