//! What one visitor lists: a state that was saved can be loaded before the start, for every row.

mod support;

use std::collections::BTreeMap;

use quelea_core::algorithms::ALGORITHMS;
use quelea_core::message::Rank;
use quelea_core::random::Rng;
use quelea_core::state::Visitor;
use quelea_core::time::Time;
use support::{Case, Lab};

#[derive(Clone, Default, PartialEq, Debug)]
struct Saved {
    numbers: BTreeMap<String, u64>,
    vectors: BTreeMap<String, Vec<f32>>,
}

struct Save<'a>(&'a mut Saved);

impl Visitor for Save<'_> {
    fn number(&mut self, name: &str, value: &mut u64) {
        let before = self.0.numbers.insert(name.to_string(), *value);
        assert_eq!(before, None, "`{name}` is listed twice");
    }

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        let before = self.0.vectors.insert(name.to_string(), value.clone());
        assert_eq!(before, None, "`{name}` is listed twice");
    }
}

struct Load<'a>(&'a Saved);

impl Visitor for Load<'_> {
    fn number(&mut self, name: &str, value: &mut u64) {
        *value = *self.0.numbers.get(name).unwrap_or_else(|| panic!("`{name}` was not saved"));
    }

    fn vector(&mut self, name: &str, value: &mut Vec<f32>) {
        let saved = self.0.vectors.get(name);
        value.clone_from(saved.unwrap_or_else(|| panic!("`{name}` was not saved")));
    }
}

#[test]
fn a_saved_state_is_whole_again_after_loading_and_starting() {
    for entry in ALGORITHMS {
        let mut case = Case { steps: 12, servers: 2, ..Case::wide(entry.meta.name, 4, 7) };
        case.optimizer = vec![("momentum", quelea_core::options::Value::Number(0.5))];
        let mut lab = Lab::new(&case);
        lab.run_to_end(&mut Rng::new(3, "state", 0));
        for rank in 0..lab.nodes.len() {
            let mut saved = Saved::default();
            lab.nodes[rank].state(&mut Save(&mut saved));
            let mut fresh = lab.setup.node(Rank::from(rank), lab.pool.clone());
            fresh.state(&mut Load(&saved));
            fresh.start(Time::ZERO);
            let mut again = Saved::default();
            fresh.state(&mut Save(&mut again));
            for (name, value) in &saved.numbers {
                assert_eq!(
                    again.numbers.get(name),
                    Some(value),
                    "{} {rank}: {name}",
                    entry.meta.name
                );
            }
            for (name, value) in &saved.vectors {
                assert_eq!(
                    again.vectors.get(name),
                    Some(value),
                    "{} {rank}: {name}",
                    entry.meta.name
                );
            }
        }
    }
}
