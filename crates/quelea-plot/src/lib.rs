//! Charts as SVG and PNG, and topologies as SVG: the same bytes on every machine, without system
//! fonts.
//!
//! A chart is plain data ([`LineChart`], [`BarChart`]); [`Chart::svg`] and [`Chart::png`] draw it.
//! [`topology_svg`] draws who averages with whom.
//!
//! ```
//! use quelea_plot::{Axis, Chart, LineChart, LineSeries};
//!
//! let chart = Chart::Lines(LineChart {
//!     title: "Speed-up".into(),
//!     x: Axis::log("workers"),
//!     y: Axis::linear("times one worker"),
//!     series: vec![LineSeries::line("allreduce", vec![(1.0, 1.0), (2.0, 1.9), (4.0, 3.6)])],
//! });
//! assert!(chart.svg().starts_with("<svg"));
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | `axis` | what runs along an edge: numbers to pixels, ticks, their labels |
//! | `lines`, `bars` | the two kinds of charts |
//! | `frame` | title, legend, axes and grid, the same in both |
//! | `canvas` | strokes, boxes and text on a backend of plotters |
//! | `topology` | a topology, one panel for each round |

mod axis;
mod bars;
mod canvas;
mod frame;
mod lines;
mod topology;

pub use axis::{Axis, AxisScale};
pub use bars::{BarChart, BarSeries};
pub use lines::{LineChart, LineSeries, Stroke};
pub use topology::topology_svg;

use canvas::Canvas;
use plotters::backend::{BitMapBackend, DrawingBackend, SVGBackend};

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// Lines or points over two axes.
    Lines(LineChart),
    /// Bars in groups.
    Bars(BarChart),
}

/// Width and height in points; a PNG has twice as many pixels.
const SIZE: (u32, u32) = (760, 440);
const PNG_SCALE: u32 = 2;

impl Chart {
    /// Its title.
    pub fn title(&self) -> &str {
        match self {
            Chart::Lines(chart) => &chart.title,
            Chart::Bars(chart) => &chart.title,
        }
    }

    /// As a vector graphic, which can stand in a page as it is.
    pub fn svg(&self) -> String {
        let mut text = String::new();
        self.draw(Canvas::new(SVGBackend::with_string(&mut text, SIZE), 1));
        text
    }

    /// As a picture.
    pub fn png(&self) -> Vec<u8> {
        let size = (SIZE.0 * PNG_SCALE, SIZE.1 * PNG_SCALE);
        let mut pixels = vec![0; (size.0 * size.1 * 3) as usize];
        self.draw(Canvas::new(BitMapBackend::with_buffer(&mut pixels, size), PNG_SCALE));
        encode(&pixels, size.0, size.1)
    }

    fn draw<B: DrawingBackend>(&self, mut canvas: Canvas<B>) {
        match self {
            Chart::Lines(chart) => chart.draw(&mut canvas),
            Chart::Bars(chart) => chart.draw(&mut canvas),
        }
        canvas.finish();
    }
}

fn encode(pixels: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().expect("memory takes every byte");
    writer.write_image_data(pixels).expect("the buffer has the size of the picture");
    writer.finish().expect("memory takes every byte");
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Chart {
        Chart::Lines(LineChart {
            title: "Loss <&> steps".into(),
            x: Axis::log("steps"),
            y: Axis::log("loss"),
            series: vec![
                LineSeries::line("a", vec![(1.0, 1.0), (10.0, 0.1), (1e5, f64::NAN), (1e6, 1e-3)]),
                LineSeries::points("b", vec![(3.0, 0.4)]),
                LineSeries::line("only zero, which a logarithm does not have", vec![(1.0, 0.0)]),
            ],
        })
    }

    fn bars(stacked: bool) -> Chart {
        Chart::Bars(BarChart {
            title: "Shares".into(),
            y: Axis::linear("%"),
            groups: vec!["x1".into(), "x2".into()],
            series: vec![
                BarSeries { marks: vec![Some(2.0)], ..BarSeries::new("a", vec![Some(1.0), None]) },
                BarSeries::new("b", vec![Some(f64::INFINITY), Some(3.0)]),
            ],
            stacked,
        })
    }

    #[test]
    fn the_same_chart_gives_the_same_bytes() {
        for chart in [lines(), bars(false), bars(true)] {
            assert_eq!(chart.svg(), chart.svg());
            assert!(chart.png() == chart.png());
        }
    }

    #[test]
    fn pictures_have_the_size_and_some_ink() {
        let file = lines().png();
        let mut reader =
            png::Decoder::new(std::io::Cursor::new(&file)).read_info().expect("a picture");
        let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
        let info = reader.next_frame(&mut pixels).expect("whole");
        assert_eq!((info.width, info.height), (1520, 880));
        assert!(pixels.iter().filter(|byte| **byte < 200).count() > 10_000);
    }

    #[test]
    fn text_is_escaped_and_holes_are_left_open() {
        let text = lines().svg();
        assert!(text.contains("Loss &lt;&amp;&gt; steps"), "{text}");
        assert!(!text.contains("NaN") && !bars(false).svg().contains("inf"));
    }

    #[test]
    fn a_chart_without_data_is_an_empty_frame() {
        let empty = LineChart { title: String::new(), ..LineChart::default() };
        assert!(Chart::Lines(empty).svg().ends_with("</svg>\n"));
        assert!(Chart::Bars(BarChart::default()).svg().ends_with("</svg>\n"));
    }
}
