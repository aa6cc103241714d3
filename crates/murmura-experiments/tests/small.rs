//! A small version of every experiment that does not train networks.

use murmura_experiments::render::{html, json, markdown};
use murmura_experiments::report::Report;
use murmura_experiments::{EXPERIMENTS, Options, find};

fn small(name: &str) -> Report {
    let row = find(name).expect("a name of the table");
    (row.run)(&Options { seed: 1, small: true }).expect("it runs")
}

fn check(name: &str) {
    let report = small(name);
    for claim in &report.claims {
        assert!(claim.holds, "{name}: {}", claim.text);
    }
    assert!(report.cells().count() > 3 && !report.parameters.is_empty(), "{name}");
    for cell in report.cells().filter(|cell| cell.fitted) {
        assert_eq!(cell.error(), None, "{name}: a fitted cell has no error");
    }
    let again = small(name);
    assert_eq!(
        html(std::slice::from_ref(&report)),
        html(&[again]),
        "{name}: the same seed, the same page"
    );
    assert!(json(&report)["cells"].as_array().is_some_and(|cells| !cells.is_empty()));
    assert!(markdown(&report, None).starts_with(&format!("## {name}\n")));
}

macro_rules! experiments {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check($name);
        })*

        #[test]
        fn every_row_that_takes_seconds_is_tested_here() {
            let tested = [$($name),*];
            for row in EXPERIMENTS.iter().filter(|row| !row.trains) {
                assert!(tested.contains(&row.name), "{}", row.name);
            }
        }
    };
}

experiments! {
    adpsgd_slowdown_holds: "adpsgd-slowdown",
    aladdin_breakdown_holds: "aladdin-breakdown",
    aladdin_convergence_holds: "aladdin-convergence",
    aladdin_heterogeneity_holds: "aladdin-heterogeneity",
    aladdin_scaling_holds: "aladdin-scaling",
    decentdp_speedup_holds: "decentdp-speedup",
    yuan_communication_holds: "yuan-communication",
    yuan_spectral_holds: "yuan-spectral",
    yuan_transient_holds: "yuan-transient",
}

#[test]
fn rows_are_in_order_and_found_by_nearly_their_name() {
    let names: Vec<&str> = EXPERIMENTS.iter().map(|row| row.name).collect();
    assert!(names.is_sorted(), "{names:?}");
    assert_eq!(find("aladin-scaling").err(), Some(Some("aladdin-scaling")));
}
