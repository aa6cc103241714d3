//! Lines or points over two axes.

use plotters::backend::DrawingBackend;

use crate::axis::{Axis, Ruler};
use crate::canvas::{COLOURS, Canvas, Ink, series_ink};
use crate::frame::{self, LegendEntry, LegendSign, Plot};

/// Lines or points over two axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineChart {
    /// Above it.
    pub title: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// What is shown, in the order of the legend.
    pub series: Vec<LineSeries>,
}

/// One line, or one kind of points.
#[derive(Clone, Debug, PartialEq)]
pub struct LineSeries {
    /// As in the legend.
    pub name: String,
    /// In order. A point that is not finite breaks the line.
    pub points: Vec<(f64, f64)>,
    /// How it looks.
    pub stroke: Stroke,
    /// Which colour of the palette; without it, the place in the list.
    pub colour: Option<usize>,
}

/// How a series looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stroke {
    /// A line.
    #[default]
    Line,
    /// A line with a dot at every point.
    Dotted,
    /// A line of dashes.
    Dashes,
    /// Dots without a line.
    Points,
}

impl LineSeries {
    /// A line; short ones show their points.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> LineSeries {
        const SHORT: usize = 16;
        let stroke = if points.len() <= SHORT { Stroke::Dotted } else { Stroke::Line };
        LineSeries { name: name.into(), points, stroke, colour: None }
    }

    /// A line of dashes.
    pub fn dashes(name: impl Into<String>, points: Vec<(f64, f64)>) -> LineSeries {
        LineSeries { stroke: Stroke::Dashes, ..LineSeries::line(name, points) }
    }

    /// Dots without a line.
    pub fn points(name: impl Into<String>, points: Vec<(f64, f64)>) -> LineSeries {
        LineSeries { stroke: Stroke::Points, ..LineSeries::line(name, points) }
    }

    /// In this colour of the palette: for two series that belong together.
    pub fn coloured(self, colour: usize) -> LineSeries {
        LineSeries { colour: Some(colour), ..self }
    }

    /// Where colours begin to repeat, lines become dashes.
    fn stroke(&self, place: usize) -> Stroke {
        match self.stroke {
            Stroke::Line | Stroke::Dotted if self.colour.is_none() && place >= COLOURS => {
                Stroke::Dashes
            }
            stroke => stroke,
        }
    }

    fn sign(&self, place: usize) -> LegendSign {
        match self.stroke(place) {
            Stroke::Line | Stroke::Dotted => LegendSign::Line,
            Stroke::Dashes => LegendSign::Dashes,
            Stroke::Points => LegendSign::Dot,
        }
    }
}

impl LineChart {
    pub(crate) fn draw<B: DrawingBackend>(&self, canvas: &mut Canvas<B>) {
        let ink = |index: usize, series: &LineSeries| series_ink(series.colour.unwrap_or(index));
        let entries: Vec<LegendEntry<'_>> = self
            .series
            .iter()
            .enumerate()
            .map(|(k, series)| LegendEntry {
                name: &series.name,
                ink: ink(k, series),
                sign: series.sign(k),
            })
            .collect();
        let top = frame::heading(canvas, &self.title, &entries);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let across = Ruler::around(&self.x, points().map(|point| point.0));
        let up = Ruler::around(&self.y, points().map(|point| point.1));
        let plot = frame::upright(canvas, top, &self.y, &up);
        frame::level(canvas, plot, &self.x, &across);
        for (k, series) in self.series.iter().enumerate() {
            let places: Vec<Option<(f64, f64)>> = series
                .points
                .iter()
                .map(|(x, y)| within(plot, across.place(*x)?, up.place(*y)?))
                .collect();
            draw(canvas, series.stroke(k), &places, ink(k, series));
        }
    }
}

/// A point of the plot; what lies outside is not drawn.
fn within(plot: Plot, x: f64, y: f64) -> Option<(f64, f64)> {
    let inside = |place: f64| (-1e-6..=1.0 + 1e-6).contains(&place);
    (inside(x) && inside(y)).then(|| (plot.x(x), plot.y(y)))
}

fn draw<B: DrawingBackend>(
    canvas: &mut Canvas<B>,
    stroke: Stroke,
    places: &[Option<(f64, f64)>],
    ink: Ink,
) {
    for run in places.split(Option::is_none) {
        let run: Vec<(f64, f64)> = run.iter().copied().flatten().collect();
        match stroke {
            Stroke::Line | Stroke::Dotted if run.len() > 1 => canvas.stroke(&run, ink, 2.0),
            Stroke::Dashes if run.len() > 1 => canvas.dashes(&run, ink, 2.0),
            _ => {}
        }
        if stroke == Stroke::Dotted || stroke == Stroke::Points || run.len() == 1 {
            run.iter().for_each(|point| canvas.dot(*point, 3.5, ink));
        }
    }
}
