//! Bars in groups, beside or on top of each other, with marks for what they are compared with.

use plotters::backend::DrawingBackend;
use plotters::style::text_anchor::{HPos, VPos};

use crate::axis::{Axis, AxisScale, Ruler};
use crate::canvas::{Canvas, DARK, LABEL, LabelStyle, series_ink};
use crate::frame::{self, LegendEntry, LegendSign, Plot};

/// Bars in groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarChart {
    /// Above it.
    pub title: String,
    /// Upwards.
    pub y: Axis,
    /// Names of the groups, from the left.
    pub groups: Vec<String>,
    /// One bar a group each.
    pub series: Vec<BarSeries>,
    /// On top of each other instead of side by side.
    pub stacked: bool,
}

/// One bar in every group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarSeries {
    /// As in the legend.
    pub name: String,
    /// Heights, by group.
    pub values: Vec<Option<f64>>,
    /// Dark marks, by group: a published value beside ours.
    pub marks: Vec<Option<f64>>,
}

/// What the legend calls the marks.
const MARKS: &str = "published";

impl BarSeries {
    /// Bars without marks.
    pub fn new(name: impl Into<String>, values: Vec<Option<f64>>) -> BarSeries {
        BarSeries { name: name.into(), values, marks: Vec::new() }
    }

    /// With a mark in every group.
    pub fn marked(self, marks: Vec<Option<f64>>) -> BarSeries {
        BarSeries { marks, ..self }
    }

    fn value(&self, group: usize) -> Option<f64> {
        self.values.get(group).copied().flatten().filter(|value| value.is_finite())
    }

    fn mark(&self, group: usize) -> Option<f64> {
        self.marks.get(group).copied().flatten().filter(|value| value.is_finite())
    }
}

/// One bar of a group: where it stands and what it shows.
struct Bar {
    left: f64,
    right: f64,
    colour: usize,
    from: f64,
    to: Option<f64>,
    mark: Option<f64>,
}

impl BarChart {
    pub(crate) fn draw<B: DrawingBackend>(&self, canvas: &mut Canvas<B>) {
        let mut entries: Vec<LegendEntry<'_>> = self
            .series
            .iter()
            .enumerate()
            .map(|(k, series)| LegendEntry {
                name: &series.name,
                ink: series_ink(k),
                sign: LegendSign::Box,
            })
            .collect();
        if self.series.iter().any(|series| !series.marks.is_empty()) {
            entries.push(LegendEntry { name: MARKS, ink: DARK, sign: LegendSign::Mark });
        }
        let top = frame::heading(canvas, &self.title, &entries);
        let up = self.ruler();
        let plot = frame::upright(canvas, top, &self.y, &up);
        for group in 0..self.groups.len() {
            self.bars(plot, group).iter().for_each(|bar| draw(canvas, plot, &up, bar));
        }
        frame::caption(canvas, plot, "");
        self.names(canvas, plot);
    }

    /// Bars stand on 0, or on the lower edge where a logarithm has no 0.
    fn ruler(&self) -> Ruler {
        let mut values: Vec<f64> = Vec::new();
        for group in 0..self.groups.len() {
            let heights = self.series.iter().filter_map(|series| series.value(group));
            if self.stacked {
                values.push(heights.sum());
            } else {
                values.extend(heights);
            }
            values.extend(self.series.iter().filter_map(|series| series.mark(group)));
        }
        let floor = match self.y.scale {
            AxisScale::Linear => 0.0,
            AxisScale::Log => {
                let least =
                    values.iter().copied().filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
                if least.is_finite() { least / 1.8 } else { 1.0 }
            }
        };
        Ruler::around(&self.y, values.into_iter().chain([floor]))
    }

    fn bars(&self, plot: Plot, group: usize) -> Vec<Bar> {
        let cell = (plot.right - plot.left) / self.groups.len().max(1) as f64;
        let beside = if self.stacked { 1 } else { self.series.len().max(1) };
        let width = (cell * 0.78 / beside as f64).min(46.0);
        let first = plot.left + cell * (group as f64 + 0.5) - width * beside as f64 / 2.0;
        let mut height = 0.0;
        let mut bars = Vec::new();
        for (colour, series) in self.series.iter().enumerate() {
            let left = if self.stacked { first } else { first + width * colour as f64 };
            let to = series.value(group).map(|value| height + value);
            bars.push(Bar {
                left,
                right: left + width * if self.stacked { 1.0 } else { 0.92 },
                colour,
                from: height,
                to,
                mark: series.mark(group),
            });
            if self.stacked {
                height = to.unwrap_or(height);
            }
        }
        bars
    }

    /// Names of the groups; where they do not fit side by side, on two levels.
    fn names<B: DrawingBackend>(&self, canvas: &mut Canvas<B>, plot: Plot) {
        let cell = (plot.right - plot.left) / self.groups.len().max(1) as f64;
        let widest = |name: &String| canvas.width_of(name, LABEL);
        let crowded = self.groups.iter().map(widest).fold(0.0, f64::max) > cell - 4.0;
        for (group, name) in self.groups.iter().enumerate() {
            let x = plot.left + cell * (group as f64 + 0.5);
            let lower = if crowded && group % 2 == 1 { 17.0 } else { 0.0 };
            let pen = LabelStyle { ink: DARK, anchor: (HPos::Center, VPos::Center), ..LABEL };
            canvas.write(name, (x, plot.bottom + 16.0 + lower), pen);
        }
    }
}

fn draw<B: DrawingBackend>(canvas: &mut Canvas<B>, plot: Plot, up: &Ruler, bar: &Bar) {
    let y = |value: f64| plot.y(up.place(value).unwrap_or(0.0).clamp(0.0, 1.0));
    if let Some(to) = bar.to {
        canvas.fill((bar.left, y(to)), (bar.right, y(bar.from)), series_ink(bar.colour));
    }
    if let Some(mark) = bar.mark {
        canvas.stroke(&[(bar.left - 1.0, y(mark)), (bar.right + 1.0, y(mark))], DARK, 3.0);
    }
}
