//! Strokes, boxes and text on a backend of plotters, in points from the upper left.

use std::sync::Once;

use plotters::backend::DrawingBackend;
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Polygon, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{
    Color as _, FontDesc, FontFamily, FontStyle, FontTransform, RGBColor, ShapeStyle, TextStyle,
    register_font,
};

/// A place in a picture: x to the right, y down.
pub(crate) type Point = (f64, f64);

/// A colour.
pub(crate) type Ink = RGBColor;

pub(crate) const WHITE: Ink = RGBColor(255, 255, 255);
pub(crate) const DARK: Ink = RGBColor(40, 44, 52);
pub(crate) const PALE: Ink = RGBColor(110, 116, 128);
pub(crate) const GRID: Ink = RGBColor(228, 231, 236);

/// Colours of the palette.
pub(crate) const COLOURS: usize = 10;

/// Told apart by people with all kinds of colour vision (after Okabe and Ito), and in grey.
const SERIES: [Ink; COLOURS] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(92, 64, 140),
    RGBColor(150, 75, 40),
    RGBColor(120, 130, 60),
    RGBColor(90, 90, 90),
];

/// The colour of the series at `index`.
pub(crate) fn series_ink(index: usize) -> Ink {
    SERIES[index % SERIES.len()]
}

/// How text looks and where it hangs.
#[derive(Clone, Copy)]
pub(crate) struct LabelStyle {
    pub(crate) ink: Ink,
    pub(crate) size: f64,
    pub(crate) bold: bool,
    pub(crate) anchor: (HPos, VPos),
    pub(crate) upright: bool,
}

pub(crate) const LABEL: LabelStyle = LabelStyle {
    ink: PALE,
    size: 12.0,
    bold: false,
    anchor: (HPos::Left, VPos::Center),
    upright: false,
};

/// Where one draws.
pub(crate) struct Canvas<B: DrawingBackend> {
    area: DrawingArea<B, Shift>,
    scale: f64,
    text_drop: f64,
}

/// By how many points pictures show text too high.
const PICTURE_TEXT_DROP: f64 = 2.5;

static FONTS: Once = Once::new();

impl<B: DrawingBackend> Canvas<B> {
    /// An empty canvas with `scale` pixels a point.
    pub(crate) fn new(backend: B, scale: u32) -> Canvas<B> {
        FONTS.call_once(|| {
            let fonts: [(FontStyle, &'static [u8]); 2] = [
                (FontStyle::Normal, include_bytes!("../fonts/DejaVuSans-subset.ttf")),
                (FontStyle::Bold, include_bytes!("../fonts/DejaVuSans-Bold-subset.ttf")),
            ];
            for (style, bytes) in fonts {
                let registered = register_font("sans-serif", style, bytes);
                assert!(registered.is_ok(), "the embedded fonts are good ones");
            }
        });
        let area = backend.into_drawing_area();
        drawn(area.fill(&WHITE));
        let text_drop = if scale == 1 { 0.0 } else { PICTURE_TEXT_DROP };
        Canvas { area, scale: f64::from(scale), text_drop }
    }

    /// Width and height.
    pub(crate) fn size(&self) -> (f64, f64) {
        let (width, height) = self.area.dim_in_pixel();
        (f64::from(width) / self.scale, f64::from(height) / self.scale)
    }

    pub(crate) fn stroke(&mut self, points: &[Point], ink: Ink, width: f64) {
        let points: Vec<_> = points.iter().map(|point| self.pixel(*point)).collect();
        let style = ShapeStyle::from(&ink).stroke_width(self.width(width));
        drawn(self.area.draw(&PathElement::new(points, style)));
    }

    /// A stroke of dashes.
    pub(crate) fn dashes(&mut self, points: &[Point], ink: Ink, width: f64) {
        const ON_AND_OFF: f64 = 5.0;
        let mut travelled = 0.0;
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let length = (x1 - x0).hypot(y1 - y0);
            let at = |s: f64| (x0 + (x1 - x0) * s / length, y0 + (y1 - y0) * s / length);
            let mut s = 0.0;
            while s < length {
                let phase: f64 = (travelled + s) % (2.0 * ON_AND_OFF);
                let rest = ON_AND_OFF - phase % ON_AND_OFF;
                let end = (s + rest.max(1e-3)).min(length);
                if phase < ON_AND_OFF {
                    self.stroke(&[at(s), at(end)], ink, width);
                }
                s = end;
            }
            travelled += length;
        }
    }

    /// A filled box between two corners.
    pub(crate) fn fill(&mut self, (x0, y0): Point, (x1, y1): Point, ink: Ink) {
        let corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)].map(|corner| self.pixel(corner));
        drawn(self.area.draw(&Polygon::new(corners, ink.filled())));
    }

    pub(crate) fn dot(&mut self, centre: Point, radius: f64, ink: Ink) {
        let radius = (radius * self.scale).round() as i32;
        drawn(self.area.draw(&Circle::new(self.pixel(centre), radius, ink.filled())));
    }

    pub(crate) fn write(&mut self, text: &str, at: Point, pen: LabelStyle) {
        let transform = if pen.upright { FontTransform::Rotate270 } else { FontTransform::None };
        let style = TextStyle::from(self.font(pen).transform(transform))
            .color(&pen.ink)
            .pos(Pos::new(pen.anchor.0, pen.anchor.1));
        let (x, y) = at;
        let at = if pen.upright { (x + self.text_drop, y) } else { (x, y + self.text_drop) };
        drawn(self.area.draw(&Text::new(text.to_string(), self.pixel(at), style)));
    }

    /// How wide a text is.
    pub(crate) fn width_of(&self, text: &str, pen: LabelStyle) -> f64 {
        let (width, _) = self.font(pen).box_size(text).expect("the font is embedded");
        f64::from(width) / self.scale
    }

    /// Finishes the picture.
    pub(crate) fn finish(self) {
        drawn(self.area.present());
    }

    fn font(&self, pen: LabelStyle) -> FontDesc<'static> {
        let style = if pen.bold { FontStyle::Bold } else { FontStyle::Normal };
        FontDesc::new(FontFamily::SansSerif, pen.size * 1.24 * self.scale, style)
    }

    fn width(&self, points: f64) -> u32 {
        (points * self.scale).round().max(1.0) as u32
    }

    fn pixel(&self, (x, y): Point) -> (i32, i32) {
        ((x * self.scale).round() as i32, (y * self.scale).round() as i32)
    }
}

/// Memory takes everything that is drawn.
fn drawn<E: std::fmt::Debug>(result: Result<(), E>) {
    result.expect("drawing into memory does not fail");
}
