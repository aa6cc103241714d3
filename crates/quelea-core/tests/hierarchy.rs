//! Gossip between hosts in any order of events: bits, resuming, doubled messages, losses.

mod support;

use std::collections::BTreeMap;

use quelea_core::message::Rank;
use quelea_core::options::Value;
use quelea_core::random::Rng;
use support::{Case, Choice, Flight, Lab};

/// Seven workers on three hosts: 3 + 2 + 2.
fn case(algorithm: &'static str) -> Case {
    let optimizer = vec![("momentum", Value::Number(0.3))];
    Case { hosts: Some(3), steps: 10, optimizer, ..Case::wide(algorithm, 7, 7) }
}

fn synchronous() -> Vec<Case> {
    let mut cases: Vec<Case> = ["consensus", "adapt-then-combine", "combine-then-adapt"]
        .map(|form| case("d-psgd").with("form", form))
        .into();
    cases
        .extend(["diging", "atc", "push"].map(|form| case("gradient-tracking").with("form", form)));
    cases.extend(
        ["d-amsgrad", "decentlam", "exact-diffusion", "extra", "qg-dmsgd", "sgp"].map(case),
    );
    for form in ["overlap", "after-step"] {
        let codec_params = vec![("share", Value::Number(0.4))];
        cases.push(Case { codec: "top-k", codec_params, ..case("choco").with("form", form) });
    }
    cases.push(Case { codec: "bf16", ..case("d-psgd") });
    cases.push(case("sgp").with("overlap", 2.0));
    cases
}

fn asynchronous() -> Vec<Case> {
    vec![case("ad-psgd"), case("sgp").with("free_running", true)]
}

/// Rows with rounds that all workers count alike.
fn counting() -> Vec<Case> {
    vec![
        case("gossip-pga").with("period", 3.0),
        case("gossip-aga").with("period", 2.0).with("warmup_steps", 4.0),
    ]
}

fn params(lab: &Lab) -> Vec<Vec<f32>> {
    lab.nodes.iter().map(|node| node.params().to_vec()).collect()
}

fn name(case: &Case) -> String {
    let keys: Vec<&str> = case.params.iter().map(|(key, _)| *key).collect();
    format!("{} {keys:?}", case.algorithm)
}

fn check_hosts(lab: &Lab, what: &str) {
    let living = lab.living_workers();
    for pair in living.windows(2) {
        let host = |rank: usize| rank * 3 / 7;
        if host(pair[0]) == host(pair[1]) {
            let [one, other] = [pair[0], pair[1]].map(|rank| lab.nodes[rank].params());
            assert_eq!(one, other, "{what}: {pair:?} are on one host");
        }
    }
}

#[test]
fn the_order_of_events_does_not_change_a_bit() {
    for case in synchronous().into_iter().chain(counting()) {
        for clip in [None, Some(0.5)] {
            let case = Case { clip, ..case.clone() };
            let run = |seed| {
                let mut lab = Lab::new(&case);
                lab.run_to_end(&mut Rng::new(seed, "order", 0));
                check_hosts(&lab, &name(&case));
                params(&lab)
            };
            (1..6).for_each(|seed| assert_eq!(run(seed), run(0), "{}", name(&case)));
        }
    }
}

#[test]
fn a_second_copy_of_a_message_changes_nothing() {
    for case in synchronous() {
        let (mut once, mut twice) = (Lab::new(&case), Lab::new(&case));
        once.run_to_end(&mut Rng::new(1, "order", 0));
        twice.run_with_duplicates(&mut Rng::new(2, "order", 0));
        twice.run_to_end(&mut Rng::new(3, "order", 0));
        assert_eq!(params(&once), params(&twice), "{}", name(&case));
    }
}

#[test]
fn asynchronous_methods_leave_every_host_with_the_same_bits() {
    for case in asynchronous() {
        for seed in 0..50 {
            let mut lab = Lab::new(&case);
            lab.run_to_end(&mut Rng::new(seed, "order", 0));
            check_hosts(&lab, &name(&case));
        }
    }
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    for case in synchronous().into_iter().chain(counting()) {
        let until = |steps| Case { steps, noise_std: 0.5, ..case.clone() };
        let end = |mut lab: Lab| {
            lab.run_to_end(&mut Rng::new(2, "order", 0));
            params(&lab)
        };
        for cut in [1, 5, 9] {
            let mut first = Lab::new(&until(cut));
            first.run(&mut Rng::new(1, "order", 0));
            let resumed = Lab::resumed(&until(10), &first.saved());
            assert_eq!(end(resumed), end(Lab::new(&until(10))), "{} at {cut}", name(&case));
        }
    }
}

/// Where the gradients of a host's survivors are taken: at each step, at one point.
#[derive(Default)]
struct Points(BTreeMap<(usize, u64), Vec<f32>>);

impl Points {
    /// Plays at most so many events.
    fn play(&mut self, lab: &mut Lab, rng: &mut Rng, most: u64, lost: &[usize]) {
        for _ in 0..most {
            let choices = lab.choices();
            let Some(last) = choices.len().checked_sub(1) else { return };
            let choice = choices[rng.below(last as u64 + 1) as usize];
            if let Choice::Start(rank) = choice
                && !lost.contains(&rank)
            {
                let node = &lab.nodes[rank];
                let point = self.0.entry((rank * 3 / 7, node.step()));
                let point = point.or_insert_with(|| node.params().to_vec());
                assert_eq!(node.params(), point, "rank {rank} at step {}", node.step());
            }
            lab.take(choice);
        }
    }
}

/// Loses the workers one after the other, at any moment, with news of it at any moment.
fn lose(case: &Case, lost: &[usize], seed: u64) -> Lab {
    let (mut lab, mut rng, mut points) =
        (Lab::new(case), Rng::new(seed, "loss", 0), Points::default());
    // Where parameters change at any time, those of a leader may have changed since it sent them.
    let exempt: Vec<usize> = (0..7).filter(|_| lab.setup.properties().snapshot).collect();
    let lost_or_exempt: Vec<usize> = lost.iter().copied().chain(exempt).collect();
    let mut play = |lab: &mut Lab, rng: &mut Rng, most: u64| {
        let events = rng.below(most);
        points.play(lab, rng, events, &lost_or_exempt);
    };
    play(&mut lab, &mut rng, case.steps * 60);
    for rank in lost {
        lab.crash(*rank);
        for rank in 0..lab.nodes.len() {
            if rng.below(2) == 0 {
                lab.tell_view(rank);
            }
            play(&mut lab, &mut rng, 3);
        }
        play(&mut lab, &mut rng, 40);
    }
    let mut order: Vec<usize> = (0..lab.nodes.len()).collect();
    rng.shuffle(&mut order);
    for rank in order {
        lost.iter().for_each(|_| lab.tell_view(rank));
        play(&mut lab, &mut rng, 3);
    }
    play(&mut lab, &mut rng, u64::MAX);
    lab.run_to_end(&mut rng);
    lab
}

#[test]
fn survivors_finish_whoever_is_lost_and_whenever() {
    let cases = synchronous().into_iter().chain(asynchronous());
    for (place, case) in cases.enumerate() {
        for seed in 0..120 {
            let mut rng = Rng::new(seed, "who", place as u64);
            let mut ranks: Vec<usize> = (0..7).collect();
            rng.shuffle(&mut ranks);
            let lost = &ranks[..1 + rng.below(3) as usize];
            let lab = lose(&case, lost, seed);
            let what = format!("{}, seed {seed}, without {lost:?}", name(&case));
            check_hosts(&lab, &what);
            let finite = |rank: &usize| lab.nodes[*rank].params().iter().all(|x| x.is_finite());
            assert!(lab.living_workers().iter().all(finite), "{what}");
        }
    }
}

/// A bucket of the parameters that only the lost leader knew must not be put together with buckets
/// that its successor makes.
#[test]
fn a_part_of_what_a_lost_leader_handed_out_is_void() {
    const PARAMS: u8 = 0xe2;
    for (case, seed) in
        synchronous().into_iter().flat_map(|case| (0..10).map(move |seed| (case.clone(), seed)))
    {
        let (mut lab, mut rng) = (Lab::new(&case), Rng::new(seed, "part", 0));
        // In the last step: later ones would cover it up.
        let on_its_way = |lab: &Lab| {
            let wanted = |flight: &Flight| {
                let message = &flight.message;
                (message.kind, message.step, flight.to) == (PARAMS, case.steps, Rank(2))
            };
            lab.flying.iter().position(wanted)
        };
        lab.run_while(&mut rng, |lab| on_its_way(lab).is_none());
        let place = on_its_way(&lab).expect("the leader of the first host hands out");
        lab.take(Choice::Deliver(place));
        lab.crash(0);
        (1..7).for_each(|rank| lab.tell_view(rank));
        lab.run_to_end(&mut rng);
        check_hosts(&lab, &name(&case));
    }
}

#[test]
fn methods_that_count_rounds_outlive_members_and_hosts() {
    for case in counting() {
        for seed in 0..60 {
            for lost in [&[1][..], &[1, 2], &[6, 5], &[4, 3, 2]] {
                // The first of a host is lost only after all its members.
                let lab = lose(&case, lost, seed);
                check_hosts(&lab, &format!("{}, seed {seed}, without {lost:?}", name(&case)));
            }
        }
    }
}
