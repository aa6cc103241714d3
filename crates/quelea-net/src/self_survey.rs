//! What only a driver knows of its rank when somebody looks at the run: the memory of its process, and how
//! the system finds its connections.

use std::rc::Rc;

use quelea_control::RankSurvey;
use quelea_record::ProcessMemory;

use crate::external_loop::ExternalLoop;
use crate::transport::{Link, LinkQuality};

/// Adds it to what the rank says.
pub(crate) fn complete(
    survey: &mut RankSurvey,
    links: &[Option<Rc<dyn Link>>],
    external: Option<&ExternalLoop>,
) {
    survey.memory = ProcessMemory {
        resident_bytes: resident_bytes().unwrap_or(0),
        gpu_bytes: external.map_or(0, ExternalLoop::gpu_bytes),
    };
    for total in &mut survey.links {
        let link = links.get(total.peer as usize).and_then(Option::as_ref);
        let quality = link.map_or_else(LinkQuality::default, |link| link.quality());
        (total.round_trip_micros, total.resent) = (quality.round_trip_micros, quality.resent);
    }
}

/// Memory that this process holds, where the system says.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_holds_more_memory_says_so() {
        let before = resident_bytes().expect("Linux says it");
        let held = vec![1u8; 64 << 20];
        let after = resident_bytes().expect("Linux says it");
        assert!(after >= before + (48 << 20), "{before} then {after}");
        assert_eq!(held.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>(), 16 << 10);
    }
}
