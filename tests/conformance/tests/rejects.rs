//! Entries that say what is not true of their algorithm do not pass the suite.

use conformance::suite::Suite;
use quelea_core::algorithms::{self, Entry, Gathers, Traffic, When};
use quelea_core::meta::Meta;

/// A copy of a built-in algorithm under another name, changed.
fn changed(name: &str, change: impl FnOnce(&mut Entry)) -> Suite {
    let original = algorithms::find(name).expect("built in");
    let meta = Meta { name: "changed", file: file!(), ..original.meta };
    let mut entry = Entry { meta, ..*original };
    change(&mut entry);
    Suite::of(Box::leak(Box::new(entry)))
}

#[test]
fn an_unchanged_copy_passes() {
    let suite = changed("d-psgd", |_| {});
    suite.is_described();
    suite.sends_the_bytes_of_its_traffic();
    suite.keeps_the_mean_if_it_says_so();
    suite.takes_the_time_of_its_traffic();
}

/// It sends one vector.
fn two_vectors(entry: &mut Entry) {
    entry.traffic = |_| Traffic::Gossip {
        vectors: 2,
        when: When::DuringGradient,
        every: 1,
        average: None,
        gathers: Gathers::Means,
    };
}

#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn traffic_of_more_bytes_than_it_sends_is_found() {
    changed("d-psgd", two_vectors).sends_the_bytes_of_its_traffic();
}

#[test]
#[should_panic(expected = "predicted +")]
fn traffic_that_would_take_longer_than_it_does_is_found() {
    changed("d-psgd", two_vectors).takes_the_time_of_its_traffic();
}

#[test]
#[should_panic(expected = "the mean was")]
fn a_mean_that_is_not_kept_is_found() {
    // Its outer momentum moves the models on.
    changed("bmuf", |entry| {
        entry.properties = |options| {
            let bmuf = algorithms::find("bmuf").expect("built in");
            quelea_core::properties::Properties { keeps_mean: true, ..(bmuf.properties)(options) }
        };
    })
    .with_keys("period = 3\n")
    .keeps_the_mean_if_it_says_so();
}

#[test]
#[should_panic(expected = "`lost_peer` is empty")]
fn an_entry_without_its_texts_is_found() {
    changed("d-psgd", |entry| entry.lost_peer = "").is_described();
}
