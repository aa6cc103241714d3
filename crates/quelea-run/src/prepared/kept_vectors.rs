//! How many vectors a worker keeps besides its model, for the estimate of memory.

use quelea_core::algorithms::Codecs;
use quelea_core::codec::CodecShape;
use quelea_core::topology::Schedule;

use crate::config::Config;

/// Vectors that a worker keeps for its codec: what was left out, or the public copies of itself and
/// of its neighbours.
pub(super) fn kept(config: &Config, neighbours: usize, dimensions: usize) -> usize {
    let (codec, algorithm) = (&config.codec, &config.algorithm);
    let leaves_out = !codec.entry.properties(codec.options(), dimensions).lossless;
    match (algorithm.entry.codecs)(algorithm.options()) {
        Codecs::Contraction => 1 + neighbours,
        // Averages pass on what is rounded as it is.
        Codecs::All => usize::from(leaves_out && codec.entry.shape != CodecShape::Rounding),
        Codecs::Feedback => usize::from(leaves_out),
        Codecs::Signs | Codecs::Rounding(_) | Codecs::Exact(_) => 0,
    }
}

/// Workers that one worker hears from in a round, at most.
pub(super) fn most_neighbours(schedule: &Schedule) -> usize {
    let others = schedule.round(0).rows().iter().map(|row| row.len().saturating_sub(1)).max();
    others.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::source::parse;
    use crate::prepared::PreparedRun;

    #[test]
    fn memory_has_what_codecs_keep() {
        for (algorithm, codec, vectors) in [
            ("allreduce", "f32", 0),
            ("allreduce", "bf16", 0),
            ("allreduce", "top-k", 1),
            ("asp", "bf16", 1),
            ("d-psgd", "bf16", 0),
            // Its own public copy, and those of two neighbours.
            ("choco", "f32", 3),
            ("choco", "sign", 3),
        ] {
            let text = format!(
                "workers = 5\n[algorithm]\nname = \"{algorithm}\"\n[codec]\nname = \"{codec}\"\n\
                 [topology]\nname = \"ring\"\n[task]\nname = \"quadratic\""
            );
            let config = Config::read(parse(&text).expect("TOML"), &[], None).expect("good");
            let prepared = PreparedRun::new(config).expect("it goes together");
            let neighbours = prepared.setup.view.topology(0).map_or(0, |(_, s)| most_neighbours(s));
            assert_eq!(kept(&prepared.config, neighbours, 100), vectors, "{algorithm} {codec}");
        }
    }
}
