//! A topology as an SVG picture: one panel, or one for each round of the period.

use std::f64::consts::{FRAC_PI_2, TAU};
use std::fmt::Write;

use quelea_core::topology::{Report, Round, Schedule, TopologyShape};

use crate::canvas::Point;

/// Panels at most; a longer period is cut off.
const PANELS: u64 = 8;
/// A panel with more edges than this shows those of worker 0 only.
const EDGES: usize = 4000;
/// Space above the panels, for the title.
const HEAD: f64 = 74.0;
/// Space around everything.
const MARGIN: f64 = 20.0;

const INK: &str = "#1e293b";
const PALE: &str = "#64748b";
const NEAR: &str = "#3b82f6";
const FAR: &str = "#f97316";
const RESTING: &str = "#cbd5e1";

/// Draws a topology; `report` is what [`quelea_core::topology::report()`] says of it.
pub fn topology_svg(schedule: &Schedule, report: &Report) -> String {
    let panels = match schedule.period() {
        Some(period) => (period as u64).min(PANELS),
        None => PANELS,
    };
    let (side, pitch) = if panels == 1 { (440.0, 440.0) } else { (240.0, 268.0) };
    let placement = Placement::new(schedule, side);
    let columns = if panels <= 4 { panels } else { panels.div_ceil(2) };
    let caption = if panels == 1 { 0.0 } else { 24.0 };
    let width = (columns as f64 * pitch).max(440.0) + 2.0 * MARGIN;
    let height = HEAD + panels.div_ceil(columns) as f64 * (placement.height + caption) + MARGIN;
    let mut out = head(width, height, schedule, report);
    for step in 0..panels {
        let middle = width / 2.0 + ((step % columns) as f64 + 0.5 - columns as f64 / 2.0) * pitch;
        let left = middle - side / 2.0;
        let top = HEAD + (step / columns) as f64 * (placement.height + caption);
        let _ = write!(out, "<g transform=\"translate({left:.1} {top:.1})\">");
        placement.panel(&mut out, &schedule.round(step));
        if panels > 1 {
            let (x, y) = (side / 2.0, placement.height + 8.0);
            text(&mut out, (x, y), &format!("round {step}"), &pale(12.0));
        }
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn head(width: f64, height: f64, schedule: &Schedule, report: &Report) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif\" text-anchor=\"middle\">\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{:.0}\" height=\"{:.0}\" rx=\"12\" fill=\"#ffffff\" \
         stroke=\"#e2e8f0\"/>\n",
        width - 1.0,
        height - 1.0
    );
    let _ = writeln!(
        out,
        "<marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" \
         markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">\
         <path d=\"M0 1 L7 4 L0 7 z\" fill=\"{NEAR}\"/></marker>"
    );
    text(
        &mut out,
        (width / 2.0, 34.0),
        schedule.name(),
        &TextStyle { size: 20.0, colour: INK, weight: "600" },
    );
    let mut words = subtitle(report);
    if matches!(schedule.shape(), TopologyShape::Hosts(_)) {
        words += " · orange: between hosts";
    }
    text(&mut out, (width / 2.0, 56.0), &words, &pale(13.0));
    out
}

fn subtitle(report: &Report) -> String {
    let noun = if report.workers == 1 { "worker" } else { "workers" };
    let speed = match (report.period, report.mean_square) {
        (Some(1), _) => format!("ρ = {}", short(report.rho)),
        (Some(period), _) => {
            let product = short(report.period_rho.unwrap_or(1.0));
            let shown = if period as u64 > PANELS { ", the first 8 shown" } else { "" };
            format!("period {period}{shown} · ρ of a period = {product}")
        }
        (None, mean_square) => {
            let factor = short(mean_square.unwrap_or(1.0));
            format!("drawn at random, 8 rounds shown · mean-square contraction {factor}")
        }
    };
    format!("{} {noun} · {speed}", report.workers)
}

/// Four digits, no trailing zeros; nothing below one is rounded up to it.
fn short(number: f64) -> String {
    if (0.9999..1.0).contains(&number) {
        return format!("1 − {:.1e}", 1.0 - number);
    }
    let digits = format!("{number:.4}");
    digits.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// How text looks.
struct TextStyle<'a> {
    size: f64,
    colour: &'a str,
    weight: &'a str,
}

/// Text in [`PALE`] of ordinary weight.
fn pale(size: f64) -> TextStyle<'static> {
    TextStyle { size, colour: PALE, weight: "400" }
}

/// Text whose middle is at `at`.
fn text(out: &mut String, at: Point, words: &str, style: &TextStyle) {
    let TextStyle { size, colour, weight } = style;
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size:.1}\" fill=\"{colour}\" \
         font-weight=\"{weight}\">{words}</text>",
        at.0, at.1
    );
}

/// Where the workers of a panel stand.
struct Placement {
    places: Vec<Point>,
    /// The distance between neighbours.
    spacing: f64,
    /// The radius of a worker.
    dot: f64,
    /// Discs behind the workers of a host: centre and radius.
    discs: Vec<(f64, f64, f64)>,
    /// The host of each worker, where the picture shows hosts.
    hosts: Vec<u32>,
    /// Workers in a row of a lattice.
    lattice: Option<usize>,
    /// All workers stand on one circle.
    is_circle: bool,
    side: f64,
    height: f64,
}

impl Placement {
    fn new(schedule: &Schedule, side: f64) -> Placement {
        let n = schedule.workers();
        match schedule.shape() {
            TopologyShape::Hub => Placement::hub(n, side),
            // A long path or ring is too thin in one row.
            TopologyShape::Lattice { columns } if n > *columns || n <= 16 => {
                Placement::rows(n, *columns, side)
            }
            TopologyShape::Hosts(hosts) => Placement::hosts(hosts, side),
            TopologyShape::Circle | TopologyShape::Lattice { .. } => Placement::circle(n, side),
        }
    }

    fn square(places: Vec<Point>, spacing: f64, side: f64) -> Placement {
        let dot = (0.3 * spacing).clamp(1.5, 4.5 + 0.03 * side);
        let (discs, hosts) = (Vec::new(), Vec::new());
        Placement {
            places,
            spacing,
            dot,
            discs,
            hosts,
            lattice: None,
            is_circle: false,
            side,
            height: side,
        }
    }

    fn circle(n: usize, side: f64) -> Placement {
        let radius = if n == 1 { 0.0 } else { 0.41 * side };
        let places = around((side / 2.0, side / 2.0), radius, n).collect();
        Placement { is_circle: true, ..Placement::square(places, spacing(radius, n), side) }
    }

    fn hub(n: usize, side: f64) -> Placement {
        let centre = (side / 2.0, side / 2.0);
        let places = std::iter::once(centre).chain(around(centre, 0.41 * side, n - 1)).collect();
        Placement::square(places, spacing(0.41 * side, n - 1), side)
    }

    fn rows(n: usize, columns: usize, side: f64) -> Placement {
        let rows = n / columns;
        let cell = (side / (columns as f64 + 0.6)).min(88.0);
        let left = (side - (columns - 1) as f64 * cell) / 2.0;
        let place =
            |i: usize| (left + (i % columns) as f64 * cell, (0.75 + (i / columns) as f64) * cell);
        let mut placement = Placement::square((0..n).map(place).collect(), cell, side);
        placement.height = (rows as f64 + 0.5) * cell;
        placement.lattice = Some(columns);
        placement
    }

    fn hosts(hosts: &[u32], side: f64) -> Placement {
        let mut numbers = hosts.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let radius = if numbers.len() == 1 { 0.0 } else { 0.3 * side };
        let disc = (0.42 * spacing(radius, numbers.len())).min(0.16 * side);
        let mut places = vec![(0.0, 0.0); hosts.len()];
        let mut gap = disc;
        let mut discs = Vec::new();
        for (number, centre) in
            numbers.iter().zip(around((side / 2.0, side / 2.0), radius, numbers.len()))
        {
            let members: Vec<usize> = (0..hosts.len()).filter(|i| hosts[*i] == *number).collect();
            let ring = if members.len() == 1 { 0.0 } else { 0.64 * disc };
            gap = spacing(ring, members.len()).min(gap);
            for (member, place) in members.iter().zip(around(centre, ring, members.len())) {
                places[*member] = place;
            }
            discs.push((centre.0, centre.1, disc));
        }
        let dot = (0.36 * gap).min(0.3 * disc).max(1.5);
        Placement { dot, discs, hosts: hosts.to_vec(), ..Placement::square(places, gap, side) }
    }

    fn panel(&self, out: &mut String, round: &Round) {
        for (x, y, radius) in &self.discs {
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"#f1f5f9\" \
                 stroke=\"#e2e8f0\"/>"
            );
        }
        let is_directed = round.is_directed();
        let drawn = |edge: &(usize, usize)| is_directed || edge.0 < edge.1;
        let mut edges: Vec<(usize, usize)> = round.edges().filter(drawn).collect();
        if edges.len() > EDGES {
            edges.retain(|(from, to)| *from == 0 || *to == 0);
            let words = "too many edges: those of worker 0";
            text(out, (self.side / 2.0, 4.0), words, &pale(11.0));
        }
        let (width, opacity) = if edges.len() > 150 { (0.8, 0.4) } else { (1.6, 0.75) };
        let _ = writeln!(
            out,
            "<g fill=\"none\" stroke-width=\"{width}\" stroke-opacity=\"{opacity}\">"
        );
        edges.iter().for_each(|(from, to)| self.edge(out, *from, *to, is_directed));
        out.push_str("</g>\n");
        (0..self.places.len()).for_each(|i| self.worker(out, i, round));
    }

    fn edge(&self, out: &mut String, from: usize, to: usize, is_directed: bool) {
        let crosses = !self.hosts.is_empty() && self.hosts[from] != self.hosts[to];
        let colour = if crosses { FAR } else { NEAR };
        let marker = if is_directed { " marker-end=\"url(#arrow)\"" } else { "" };
        let (start, end) = (self.places[from], self.places[to]);
        let via = self.via(from, to);
        let (x, y) = short_of(via, end, if is_directed { self.dot + 1.0 } else { 0.0 });
        let path = format!("Q{:.1} {:.1} {x:.1} {y:.1}", via.0, via.1);
        let _ = writeln!(
            out,
            "<path d=\"M{:.1} {:.1} {path}\" stroke=\"{colour}\"{marker}/>",
            start.0, start.1
        );
    }

    /// Where the curve of an edge bends, out of the way of the workers between its ends.
    fn via(&self, from: usize, to: usize) -> Point {
        let (start, end) = (self.places[from], self.places[to]);
        let middle = ((start.0 + end.0) / 2.0, (start.1 + end.1) / 2.0);
        let n = self.places.len();
        let steps = from.abs_diff(to);
        match self.lattice {
            Some(columns) if wraps(from, to, columns) => {
                let is_row = from / columns == to / columns;
                if is_row {
                    (middle.0, middle.1 - self.spacing)
                } else {
                    (middle.0 - self.spacing, middle.1)
                }
            }
            None if self.is_circle && steps.min(n - steps) > 1 => {
                let centre = self.side / 2.0;
                (middle.0 + 0.4 * (centre - middle.0), middle.1 + 0.4 * (centre - middle.1))
            }
            _ => middle,
        }
    }

    fn worker(&self, out: &mut String, i: usize, round: &Round) {
        let (x, y) = self.places[i];
        let rests = round.workers() > 1 && round.rows()[i].len() == 1;
        let fill = if rests { RESTING } else { INK };
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{:.1}\" fill=\"{fill}\"/>",
            self.dot
        );
        let colour = if rests { INK } else { "#ffffff" };
        let size = self.dot * if self.places.len() > 100 { 0.8 } else { 1.0 };
        if self.dot >= 6.5 {
            let style = TextStyle { size, colour, weight: "500" };
            text(out, (x, y + 0.36 * size), &i.to_string(), &style);
        } else {
            self.label_outside(out, i);
        }
    }

    /// The number beside a worker that is too small to hold it; not all if they would overlap.
    fn label_outside(&self, out: &mut String, i: usize) {
        let stride = (15.0 / self.spacing).ceil() as usize;
        let is_last = i > 0 && i + stride > self.places.len();
        let is_crowded = self.lattice.is_some() || !self.discs.is_empty();
        if is_crowded || is_last || !i.is_multiple_of(stride) {
            return;
        }
        let centre = self.side / 2.0;
        let (dx, dy) = (self.places[i].0 - centre, self.places[i].1 - centre);
        let reach = 1.0 + (self.dot + 9.0) / dx.hypot(dy).max(1.0);
        let at = (centre + dx * reach, centre + dy * reach + 3.0);
        text(out, at, &i.to_string(), &pale(8.0));
    }
}

/// `n` places on a circle, clockwise from the top.
fn around(centre: Point, radius: f64, n: usize) -> impl Iterator<Item = Point> {
    (0..n).map(move |i| {
        let (sin, cos) = (TAU * i as f64 / n as f64 - FRAC_PI_2).sin_cos();
        (centre.0 + radius * cos, centre.1 + radius * sin)
    })
}

/// The distance between neighbours of [`around`]; the diameter if there are none.
fn spacing(radius: f64, n: usize) -> f64 {
    if n <= 1 { 100.0 } else { 2.0 * radius * (TAU / 2.0 / n as f64).sin() }
}

/// Whether the edge of a lattice goes around its border.
fn wraps(from: usize, to: usize, columns: usize) -> bool {
    let apart = from.abs_diff(to);
    if from / columns == to / columns { apart > 1 } else { apart > columns }
}

/// The point `gap` before `end` on the way from `start`.
fn short_of(start: Point, end: Point, gap: f64) -> Point {
    let (dx, dy) = (end.0 - start.0, end.1 - start.1);
    let share = 1.0 - gap / dx.hypot(dy).max(gap);
    (start.0 + dx * share, start.1 + dy * share)
}

#[cfg(test)]
mod tests {
    use quelea_core::options::Options;
    use quelea_core::topology::{TOPOLOGIES, TopologyRequest, report};

    use super::*;

    /// A topology of `n` workers on hosts of `per_host`, where it exists for so many.
    fn build(name: &str, n: u32, per_host: u32) -> Option<Schedule> {
        let entry = quelea_core::topology::find(name).expect("it is in the table");
        let hosts: Vec<u32> = (0..n).map(|i| i / per_host).collect();
        let options = Options::defaults(entry.meta.options);
        entry.build(&TopologyRequest { hosts: &hosts, seed: 7, options: &options, text: None }).ok()
    }

    /// Every topology of the table for every of these sizes for which it exists.
    fn cases(sizes: &[u32]) -> Vec<(&'static str, Schedule)> {
        let of = |name| sizes.iter().filter_map(move |n| Some((name, build(name, *n, 4)?)));
        TOPOLOGIES.iter().flat_map(|entry| of(entry.meta.name)).collect()
    }

    #[test]
    fn pictures_show_every_worker_in_every_panel() {
        for (name, schedule) in cases(&[1, 2, 3, 8, 16, 17]) {
            let picture = topology_svg(&schedule, &report(&schedule));
            let panels = schedule.period().unwrap_or(8).min(8);
            let dots =
                picture.matches("<circle").count() - picture.matches("fill=\"#f1f5f9\"").count();
            assert_eq!(dots, panels * schedule.workers(), "{name} {}", schedule.workers());
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{name}");
            assert_eq!(picture.matches("<g").count(), picture.matches("</g>").count());
            let arrows = picture.contains("marker-end");
            assert_eq!(arrows, report(&schedule).is_directed, "{name} {}", schedule.workers());
        }
    }

    #[test]
    fn pictures_of_many_workers_stay_small() {
        let schedule = build("complete", 300, 4).expect("complete for any number");
        let picture = topology_svg(&schedule, &report(&schedule));
        assert!(picture.len() < 200_000 && picture.contains("those of worker 0"));
        let schedule = build("ring", 1024, 4).expect("a ring of any number");
        let picture = topology_svg(&schedule, &report(&schedule));
        assert!(picture.contains("ρ = 1 − 1.3e-5"), "a ring of 1024 mixes slowly, but it mixes");
    }

    /// `quelea topology aer --workers 16 --hosts 4 --svg aer.svg`, which the README shows.
    #[test]
    fn the_picture_in_the_readme_comes_out_byte_for_byte() {
        let schedule = build("aer", 16, 4).expect("four hosts of four");
        let kept = include_str!("../../../docs/images/aer.svg");
        assert!(topology_svg(&schedule, &report(&schedule)) == kept, "docs/images/aer.svg differs");
    }
}
