//! What runs along an edge of a chart: numbers to places, ticks, their labels.

/// How numbers are spread over an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AxisScale {
    /// Evenly.
    #[default]
    Linear,
    /// By their logarithm; what is not above 0 is left out.
    Log,
}

/// One axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What is measured, with its unit.
    pub label: String,
    /// How numbers are spread.
    pub scale: AxisScale,
    /// From where to where; without it, so that all data fit.
    pub range: Option<(f64, f64)>,
}

impl Axis {
    /// An even axis.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), ..Axis::default() }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: AxisScale::Log, range: None }
    }

    /// From `low` to `high`, whatever the data.
    pub fn within(self, low: f64, high: f64) -> Axis {
        Axis { range: Some((low, high)), ..self }
    }
}

/// An axis with its range settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ruler {
    scale: AxisScale,
    low: f64,
    high: f64,
}

/// A tick and its label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    /// From 0 at the low end to 1 at the high end.
    pub(crate) place: f64,
    /// Empty for a tick between two labels.
    pub(crate) label: String,
}

impl Ruler {
    /// Around these values.
    pub(crate) fn around(axis: &Axis, values: impl Iterator<Item = f64>) -> Ruler {
        let scale = axis.scale;
        let fits = |v: &f64| v.is_finite() && (scale == AxisScale::Linear || *v > 0.0);
        let span = |(low, high): (f64, f64), v: f64| (low.min(v), high.max(v));
        let found = values.filter(fits).fold((f64::INFINITY, f64::NEG_INFINITY), span);
        let (low, high) = axis.range.unwrap_or(if found.0 > found.1 { (1.0, 10.0) } else { found });
        match scale {
            AxisScale::Log => Ruler::logarithmic(low, high),
            AxisScale::Linear => Ruler::even(low, high, axis.range.is_some()),
        }
    }

    fn logarithmic(low: f64, high: f64) -> Ruler {
        let (low, high) =
            if high <= low * 1.000_001 { (low / 2.0, high * 2.0) } else { (low, high) };
        let room = (high / low).powf(0.03);
        Ruler { scale: AxisScale::Log, low: low / room, high: high * room }
    }

    fn even(low: f64, high: f64, exact: bool) -> Ruler {
        let (low, high) =
            if high - low <= 1e-12 * high.abs() { (low - 0.5, high + 0.5) } else { (low, high) };
        if exact {
            return Ruler { scale: AxisScale::Linear, low, high };
        }
        let room = (high - low) * 0.04;
        // An axis that nearly reaches 0 shows it.
        let low = if low >= 0.0 && low < 0.4 * high { 0.0 } else { low - room };
        Ruler { scale: AxisScale::Linear, low, high: high + room }
    }

    /// From 0 at the low end to 1 at the high end; nothing where the axis has no such place.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        let place = match self.scale {
            AxisScale::Linear => (value - self.low) / (self.high - self.low),
            AxisScale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        place.is_finite().then_some(place)
    }

    pub(crate) fn ticks(&self) -> Vec<Tick> {
        let values = match self.scale {
            AxisScale::Linear => self.even_ticks(),
            AxisScale::Log => self.logarithmic_ticks(),
        };
        let tick = |(value, labelled): (f64, bool)| {
            let place = self.place(value).filter(|place| (-1e-9..=1.0 + 1e-9).contains(place))?;
            Some(Tick { place, label: if labelled { number(value) } else { String::new() } })
        };
        values.into_iter().filter_map(tick).collect()
    }

    fn even_ticks(&self) -> Vec<(f64, bool)> {
        let rough = (self.high - self.low) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(10.0 * power);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|k| (k as f64 * step, true)).collect()
    }

    /// Powers of ten, with 2 and 5 between them where there are few, and unlabelled ticks.
    fn logarithmic_ticks(&self) -> Vec<(f64, bool)> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let decades = self.high.log10() - self.low.log10();
        let every = (decades / 9.0).ceil().max(1.0) as i32;
        let labelled: &[u32] = match decades {
            d if d < 1.0 => &[1, 2, 3, 5, 7],
            d if d < 2.8 => &[1, 2, 5],
            _ => &[1],
        };
        let mut ticks = Vec::new();
        for power in first..=last {
            for digit in 1..=9_u32 {
                let is_labelled = labelled.contains(&digit) && power.rem_euclid(every) == 0;
                if is_labelled || decades < 5.0 {
                    ticks.push((f64::from(digit) * 10f64.powi(power), is_labelled));
                }
            }
        }
        ticks
    }
}

/// A number as an axis shows it.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e6).contains(&size) {
        let exponent = size.log10().floor() as i32;
        let digits = value / 10f64.powi(exponent);
        let power = format!("10{}", superscript(exponent));
        return match (digits * 10.0).round() / 10.0 {
            1.0 => power,
            digits => format!("{digits}·{power}"),
        };
    }
    let rounded = (value * 1e6).round() / 1e6;
    if rounded == 0.0 { "0".to_string() } else { format!("{rounded}") }
}

fn superscript(exponent: i32) -> String {
    let raised = |letter| match letter {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit => char::from_u32(0x2070 + digit as u32 - '0' as u32).unwrap_or(digit),
    };
    exponent.to_string().chars().map(raised).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64]) -> Vec<String> {
        let ticks = Ruler::around(axis, values.iter().copied()).ticks();
        ticks.into_iter().map(|tick| tick.label).filter(|label| !label.is_empty()).collect()
    }

    #[test]
    fn even_ticks_are_round_numbers() {
        assert_eq!(labels(&Axis::linear(""), &[0.0, 8.0]), ["0", "2", "4", "6", "8"]);
        assert_eq!(
            labels(&Axis::linear("").within(0.0, 0.5), &[]),
            ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]
        );
    }

    #[test]
    fn logarithmic_ticks_are_powers() {
        assert_eq!(
            labels(&Axis::log(""), &[1.0, 256.0]),
            ["1", "2", "5", "10", "20", "50", "100", "200"]
        );
        assert_eq!(
            labels(&Axis::log(""), &[1e-8, 1.0])[..2],
            ["10⁻⁸".to_string(), "10⁻⁷".to_string()]
        );
    }

    #[test]
    fn one_value_or_none_still_makes_an_axis() {
        assert!(labels(&Axis::linear(""), &[3.0]).contains(&"3".to_string()));
        assert!(!labels(&Axis::log(""), &[0.0, f64::NAN]).is_empty());
        assert!(labels(&Axis::log(""), &[5.0]).contains(&"5".to_string()));
    }
}
