//! Parts of the comparison that have scripts of their own: sharded models between hosts, unequal machines, and all-reduce
//! of a process group.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Hosts, JsonLines, LIMIT, Place, Tools, Wire, median, row, run_plan};

/// Between hosts, in the order of the table; `hsdp` and `ddp` are PyTorch's over gloo, `fsdp` exchanges nothing.
const HSDP: [&str; 7] = ["fsdp", "ddp", "hsdp", "allreduce", "d-psgd", "diloco", "aladdin"];
/// Megabits per second.
const RATE: u32 = 1000;

/// Two hosts with two ranks each: FSDP inside, algorithms between them, against HSDP.
pub(super) fn hsdp(wire: Wire) -> Result<Vec<Value>> {
    let tools = Tools { wire, ..Tools::provide("hsdp.py")? };
    let hosts = Hosts { rate: RATE, hosts: 2, ranks: 2 };
    let plan = json!({
        "limit_seconds": LIMIT.as_secs(), "hosts": hosts.hosts, "ranks": hosts.ranks, "rounds": 3, "warm": 2, "steps": 10,
        "compute_ms": [100.0, 300.0], "names": HSDP,
    });
    let lines = JsonLines(run_plan(&tools, &Place::Hosts(hosts), &plan)?);
    let mut rows = Vec::new();
    for compute_ms in [100.0, 300.0] {
        let of = |name: &str| {
            lines.series(false, |line| line["name"] == name && line["compute_ms"] == compute_ms)
        };
        let place = format!("2 × 2 ranks, {RATE} Mbit/s, {compute_ms} ms{}", wire.suffix());
        for name in HSDP.iter().filter(|name| **name != "hsdp") {
            rows.push(row(&format!("{name} to HSDP, {place}"), None, &of(name), &of("hsdp")));
        }
        let mut best = best_of_ours(&rows[rows.len() - 3..]).context("three rows")?;
        best["name"] = Value::from(format!("best to HSDP, {place}"));
        best["goal"] = Value::from(1.0 / 1.5);
        rows.push(best);
    }
    Ok(rows)
}

/// The row of the smallest ratio.
fn best_of_ours(rows: &[Value]) -> Option<Value> {
    let ratio = |row: &&Value| row["ratio"].as_f64().unwrap_or(f64::INFINITY);
    let best = rows.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let mut best = best.clone();
    best["which"] = best["name"].clone();
    Some(best)
}

/// Four hosts of which one is three times slower: synchronous all-reduce with `balance=True` against without.
pub(super) fn balance(wire: Wire) -> Result<Vec<Value>> {
    const SLOW: u32 = 3;
    let tools = Tools { wire, ..Tools::provide("balance.py")? };
    let plan = json!({
        "limit_seconds": LIMIT.as_secs(), "slow": SLOW, "rounds": 4, "warm": 10, "steps": 40, "batch": 32, "sample_ms": 3.0,
    });
    let lines = run_plan(&tools, &Place::Hosts(Hosts::single(RATE)), &plan)?;
    let losses = |name: &str| -> Vec<f64> {
        let of_first = lines.iter().filter(|line| line["name"] == name && line["rank"] == 0);
        of_first.filter_map(|line| line["loss"].as_f64()).collect()
    };
    let (balanced_losses, equal_losses) = (losses("balanced"), losses("equal"));
    let lines = JsonLines(lines);
    let of = |name: &str| lines.series(false, |line| line["name"] == name);
    let place = format!("one of 4 hosts {SLOW} times slower{}", wire.suffix());
    let times =
        row(&format!("balance to none, {place}"), Some(1.0 / 1.8), &of("balanced"), &of("equal"));
    Ok(vec![times, loss_row(&place, &balanced_losses, &equal_losses)])
}

/// How far the losses after as many samples are apart, against how far those of different seeds are.
fn loss_row(place: &str, ours: &[f64], theirs: &[f64]) -> Value {
    let apart = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs());
    let most = theirs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = theirs.iter().copied().fold(f64::INFINITY, f64::min);
    json!({
        "name": format!("loss with balance, apart from without it, to the spread of seeds, {place}"),
        "ratio": apart.fold(0.0, f64::max) / (most - least),
        "goal": 1.0,
        "ours": median(ours),
        "theirs": median(theirs),
        "seeds": ours.len(),
    })
}

/// What a process group reduces: one long tensor, or many short ones in one call.
const REDUCED: [(&str, u32, u32); 2] = [("25 MiB", 1, 25 << 20), ("200 × 4 KiB", 200, 4 << 10)];

/// All-reduce by `torch.distributed`, in turns with gloo.
pub(super) fn process_groups(wire: Wire) -> Result<Vec<Value>> {
    let tools = Tools { wire, ..Tools::provide("allreduce.py")? };
    let mut rows = Vec::new();
    for (what, tensors, bytes) in REDUCED {
        for processes in [2, 4] {
            let plan = json!({
                "limit_seconds": LIMIT.as_secs(), "bytes": bytes, "tensors": tensors, "rounds": 8, "repeats": 10,
            });
            let lines = JsonLines(run_plan(&tools, &Place::Here(processes), &plan)?);
            let of = |name: &str| lines.series(false, |line| line["name"] == name);
            let name =
                format!("all-reduce of a process group to gloo, {what}, {processes} processes");
            rows.push(row(&name, Some(1.0), &of("quelea"), &of("gloo")));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_held_against_the_spread_of_seeds() {
        let row = loss_row("here", &[0.5, 0.7], &[0.51, 0.71]);
        let ratio = row["ratio"].as_f64().expect("a number");
        assert!((ratio - 0.05).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn the_best_row_has_the_smallest_ratio() {
        let rows = [json!({ "name": "a", "ratio": 0.9 }), json!({ "name": "b", "ratio": 0.4 })];
        assert_eq!(best_of_ours(&rows).expect("rows")["which"], "b");
    }
}
