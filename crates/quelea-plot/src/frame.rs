//! Title, legend, axes and grid: what both kinds of charts have around their data.

use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};

use crate::axis::{Axis, Ruler, Tick};
use crate::canvas::{Canvas, DARK, GRID, Ink, LABEL, LabelStyle, Point};

/// The rectangle that the data are drawn in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plot {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl Plot {
    pub(crate) fn x(&self, place: f64) -> f64 {
        self.left + (self.right - self.left) * place
    }

    pub(crate) fn y(&self, place: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * place
    }
}

/// How a legend shows a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LegendSign {
    Line,
    Dashes,
    Dot,
    Box,
    Mark,
}

/// One entry of a legend.
pub(crate) struct LegendEntry<'a> {
    pub(crate) name: &'a str,
    pub(crate) ink: Ink,
    pub(crate) sign: LegendSign,
}

const EDGE: f64 = 14.0;
const LINE: f64 = 19.0;
const SIGN: f64 = 22.0;

/// Draws title and legend; returns how far down they reach.
pub(crate) fn heading<B: DrawingBackend>(
    canvas: &mut Canvas<B>,
    title: &str,
    entries: &[LegendEntry<'_>],
) -> f64 {
    let pen = LabelStyle { ink: DARK, size: 15.0, bold: true, ..LABEL };
    canvas.write(title, (EDGE, EDGE + 9.0), pen);
    let (mut x, mut y) = (EDGE, EDGE + 34.0);
    for entry in entries {
        let width = SIGN + 6.0 + canvas.width_of(entry.name, LABEL) + 16.0;
        if x > EDGE && x + width > canvas.size().0 - EDGE {
            (x, y) = (EDGE, y + LINE);
        }
        sign(canvas, entry, (x, y));
        canvas.write(entry.name, (x + SIGN + 6.0, y), LabelStyle { ink: DARK, ..LABEL });
        x += width;
    }
    if entries.is_empty() { EDGE + 24.0 } else { y + 12.0 }
}

fn sign<B: DrawingBackend>(canvas: &mut Canvas<B>, entry: &LegendEntry<'_>, (x, y): Point) {
    let ends = [(x, y), (x + SIGN, y)];
    match entry.sign {
        LegendSign::Line => canvas.stroke(&ends, entry.ink, 2.0),
        LegendSign::Dashes => canvas.dashes(&ends, entry.ink, 2.0),
        LegendSign::Dot => canvas.dot((x + SIGN / 2.0, y), 3.5, entry.ink),
        LegendSign::Box => canvas.fill((x + 5.0, y - 6.0), (x + SIGN - 3.0, y + 6.0), entry.ink),
        LegendSign::Mark => canvas.stroke(&[(x + 4.0, y), (x + SIGN - 4.0, y)], entry.ink, 3.0),
    }
}

/// Draws the vertical axis with its grid; returns the rectangle for the data.
pub(crate) fn upright<B: DrawingBackend>(
    canvas: &mut Canvas<B>,
    top: f64,
    axis: &Axis,
    ruler: &Ruler,
) -> Plot {
    let (width, height) = canvas.size();
    let ticks = ruler.ticks();
    let widest = ticks.iter().map(|tick| canvas.width_of(&tick.label, LABEL)).fold(0.0, f64::max);
    let plot = Plot {
        left: EDGE + 24.0 + widest + 8.0,
        right: width - EDGE - 6.0,
        top: top + 10.0,
        bottom: height - EDGE - 40.0,
    };
    for Tick { place, label } in ticks {
        let y = plot.y(place);
        if label.is_empty() {
            canvas.stroke(&[(plot.left - 3.0, y), (plot.left, y)], GRID, 1.0);
            continue;
        }
        canvas.stroke(&[(plot.left, y), (plot.right, y)], GRID, 1.0);
        let pen = LabelStyle { anchor: (HPos::Right, VPos::Center), ..LABEL };
        canvas.write(&label, (plot.left - 8.0, y), pen);
    }
    let middle = (plot.top + plot.bottom) / 2.0;
    let half = canvas.width_of(&axis.label, LABEL) / 2.0;
    // Upright text is anchored at its beginning: backends differ in how they turn other anchors.
    let pen = LabelStyle { ink: DARK, upright: true, ..LABEL };
    canvas.write(&axis.label, (EDGE + 2.0, middle + half), pen);
    plot
}

/// Draws the horizontal axis with its grid.
pub(crate) fn level<B: DrawingBackend>(
    canvas: &mut Canvas<B>,
    plot: Plot,
    axis: &Axis,
    ruler: &Ruler,
) {
    let pen = LabelStyle { anchor: (HPos::Center, VPos::Center), ..LABEL };
    for Tick { place, label } in ruler.ticks() {
        let x = plot.x(place);
        if label.is_empty() {
            canvas.stroke(&[(x, plot.bottom), (x, plot.bottom + 3.0)], GRID, 1.0);
            continue;
        }
        canvas.stroke(&[(x, plot.top), (x, plot.bottom)], GRID, 1.0);
        canvas.write(&label, (x, plot.bottom + 14.0), pen);
    }
    caption(canvas, plot, &axis.label);
}

/// The line under the data, and what is measured along it.
pub(crate) fn caption<B: DrawingBackend>(canvas: &mut Canvas<B>, plot: Plot, label: &str) {
    canvas.stroke(&[(plot.left, plot.bottom), (plot.right, plot.bottom)], DARK, 1.0);
    let pen = LabelStyle { ink: DARK, anchor: (HPos::Center, VPos::Center), ..LABEL };
    canvas.write(label, ((plot.left + plot.right) / 2.0, plot.bottom + 36.0), pen);
}
