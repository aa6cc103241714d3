//! The dashboard for Grafana, without Grafana: it has the form that an import needs, and asks for nothing that
//! `/metrics` does not have.

use std::collections::BTreeSet;
use std::process::Command;

use quelea_page::advice::PlanForecast;
use quelea_page::description::RunDescription;
use quelea_page::log::{LogClock, RunLog};
use quelea_page::metrics;
use quelea_record::{LinkTotal, ProcessMemory, Record, RecordKind, STALENESS};
use serde_json::Value;

fn dashboard() -> Value {
    serde_json::from_str(include_str!("../../../docs/grafana.json")).expect("JSON")
}

/// A run of which everything is known that metrics can say.
fn whole_run() -> RunLog {
    let about = RunDescription { workers: 2, hosts: vec![0, 1], steps: 10, ..Default::default() };
    let forecast = |_| {
        let (best, verdict) = (String::new(), String::new());
        Some(PlanForecast { step_seconds: 1.0, best, best_step_seconds: 1.0, verdict })
    };
    let log = RunLog::live(about, LogClock::Real).with_adviser(Box::new(forecast));
    let link = LinkTotal {
        peer: 1,
        sent: 2,
        received: 2,
        bytes_sent: 100,
        bytes_received: 100,
        round_trip_micros: 50,
        resent: 1,
    };
    let memory = ProcessMemory { resident_bytes: 1 << 20, gpu_bytes: 1 << 21 };
    let events = [
        RecordKind::Step { loss: 0.5, samples: 4, compute: 0.5, exposed: 0.1, waiting: 0.1 },
        RecordKind::Account { awaiting: Vec::new(), links: vec![link], memory },
        RecordKind::Deviation { distance: 0.5, error: 0.1 },
        RecordKind::Evaluation { loss: 0.5, accuracy: Some(0.5), consensus: 0.5 },
        RecordKind::Measured { kind: &STALENESS, number: 2 },
    ];
    events.into_iter().for_each(|event| log.take(&Record { t: 1.0, rank: 0, step: 0, event }));
    log
}

/// The names that stand in a query.
fn metric_names(query: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    query.split(|c| !is_part(c)).filter(|word| word.starts_with("quelea_")).collect()
}

#[test]
fn every_query_of_the_dashboard_asks_for_a_metric_that_there_is() {
    let text = metrics::text(&whole_run());
    let names: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let dashboard = dashboard();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("queries") {
            let query = target["expr"].as_str().expect("text");
            let found = metric_names(query);
            assert!(!found.is_empty(), "{query}");
            for name in found {
                assert!(names.contains(name), "{name} is not among {names:?}");
                asked += 1;
            }
            let depth = query.chars().fold(0, |depth, c| match c {
                '(' | '[' => depth + 1,
                ')' | ']' => depth - 1,
                _ => depth,
            });
            assert_eq!(depth, 0, "{query}");
        }
    }
    assert!(asked > 12, "{asked}");
}

/// Prometheus itself parses every query, where its tool is installed.
#[test]
fn promtool_parses_every_query_of_the_dashboard() {
    let has = Command::new("promtool").arg("--version").output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!("skipped: promtool is not here (package prometheus)");
        return;
    }
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("queries"));
    let queries: Vec<&Value> = targets.map(|target| &target["expr"]).collect();
    let check = |queries: &[&Value]| {
        let rules = queries.iter().enumerate().map(|(number, query)| {
            serde_json::json!({ "record": format!("quelea:query_{number}"), "expr": query })
        });
        let rules: Vec<Value> = rules.collect();
        let file = tempfile::NamedTempFile::new().expect("a file");
        // JSON is YAML.
        let text = serde_json::json!({ "groups": [{ "name": "quelea", "rules": rules }] });
        std::fs::write(file.path(), text.to_string()).expect("written");
        let checked = Command::new("promtool").args(["check", "rules"]).arg(file.path()).output();
        checked.expect("promtool is here")
    };
    let checked = check(&queries);
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    let found = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(found.contains(&format!("{} rules found", queries.len())), "{found}");
    assert!(!check(&[&Value::from("rate(quelea_goodput_ratio)")]).status.success(), "no window");
}

#[test]
fn the_dashboard_has_the_form_that_an_import_needs() {
    let dashboard = dashboard();
    for key in ["title", "uid"] {
        assert!(dashboard[key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
    }
    assert!(dashboard["schemaVersion"].as_u64() > Some(30));
    assert!(dashboard["id"].is_null(), "a number would replace somebody's dashboard");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    assert!(variables.iter().any(|one| one["name"] == "datasource" && one["type"] == "datasource"));
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{panel}");
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()));
        assert!(panel["type"].is_string());
        assert_eq!(panel["datasource"]["uid"], "${datasource}");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
        assert!(place("x") + place("w") <= 24, "{panel}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "panels overlap at {x}, {y}");
            }
        }
        let targets = panel["targets"].as_array().expect("queries");
        let names: BTreeSet<&str> =
            targets.iter().map(|target| target["refId"].as_str().expect("a name")).collect();
        assert_eq!(names.len(), targets.len(), "queries of a panel have names of their own");
    }
}
