//! Colours of the page that mean something differ for people who do not see all colours, and texts can be read, in
//! the light and in the dark.

use std::collections::BTreeMap;

const STYLE: &str = include_str!("../assets/style.css");

/// How far two colours that mean different things are apart at least, in CIE L*a*b*: 2.3 is just noticeable.
const LEAST_DIFFERENCE: f64 = 15.0;
/// The contrast that WCAG 2 (AA) wants between texts and what is behind them.
const LEAST_CONTRAST: f64 = 4.5;

/// What it is to lack one kind of cone, in linear RGB (Machado, Oliveira and Fernandes 2009, severity 1).
const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
    ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "protanopia",
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
    ),
    (
        "deuteranopia",
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    ),
    (
        "tritanopia",
        [
            [1.255_528, -0.076_749, -0.178_779],
            [-0.078_411, 0.930_809, 0.147_602],
            [0.004_733, 0.691_367, 0.303_900],
        ],
    ),
];

/// A colour in linear RGB.
type Linear = [f64; 3];

/// The colours of the light and of the dark scheme, by name.
fn schemes() -> [BTreeMap<String, Linear>; 2] {
    let blocks: Vec<&str> = STYLE.split(":root {").skip(1).collect();
    let [light, dark] = blocks.try_into().expect("a light and a dark scheme");
    [light, dark].map(|block| {
        let block = block.split('}').next().expect("it ends");
        let pairs =
            block.split(';').filter_map(|line| line.trim().strip_prefix("--")?.split_once(": "));
        let colours = pairs.filter_map(|(name, hex)| Some((name.to_string(), linear(hex)?)));
        colours.collect()
    })
}

fn linear(hex: &str) -> Option<Linear> {
    let hex = hex.strip_prefix('#').filter(|hex| hex.len() == 6)?;
    let channel = |at: usize| {
        let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).ok()?) / 255.0;
        Some(if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) })
    };
    Some([channel(0)?, channel(2)?, channel(4)?])
}

fn times(matrix: &[[f64; 3]; 3], colour: &Linear) -> Linear {
    matrix.map(|row| row.iter().zip(colour).map(|(a, b)| a * b).sum())
}

/// In CIE L*a*b* with the white of sRGB.
fn lab(colour: &Linear) -> [f64; 3] {
    const TO_XYZ: [[f64; 3]; 3] = [
        [0.412_456_4, 0.357_576_1, 0.180_437_5],
        [0.212_672_9, 0.715_152_2, 0.072_175_0],
        [0.019_333_9, 0.119_192_0, 0.950_304_1],
    ];
    let [x, y, z] = times(&TO_XYZ, colour);
    let f = |t: f64| {
        if t > 216.0 / 24389.0 { t.cbrt() } else { (24389.0 / 27.0 * t + 16.0) / 116.0 }
    };
    let (x, y, z) = (f(x / 0.95047), f(y), f(z / 1.08883));
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

fn difference(a: &Linear, b: &Linear) -> f64 {
    let (a, b) = (lab(a), lab(b));
    a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// The contrast of WCAG 2.
fn contrast(a: &Linear, b: &Linear) -> f64 {
    let luminance = |[r, g, b]: &Linear| 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    let (a, b) = (luminance(a), luminance(b));
    a.max(b) / a.min(b)
}

#[test]
fn colours_with_a_meaning_differ_for_colour_blind_people() {
    let meant = ["compute", "exposed", "waiting", "good", "bad"];
    for scheme in schemes() {
        for (vision, matrix) in &VISIONS {
            let seen = |name: &str| times(matrix, &scheme[name]).map(|value| value.clamp(0.0, 1.0));
            for (place, a) in meant.iter().enumerate() {
                for b in &meant[place + 1..] {
                    let apart = difference(&seen(a), &seen(b));
                    assert!(
                        apart >= LEAST_DIFFERENCE,
                        "{vision}: {a} and {b} are {apart:.1} apart"
                    );
                }
            }
        }
    }
}

#[test]
fn texts_can_be_read_on_what_is_behind_them() {
    for scheme in schemes() {
        for text in ["ink", "soft", "good", "bad", "waiting"] {
            for behind in ["card", "back"] {
                let found = contrast(&scheme[text], &scheme[behind]);
                assert!(found >= LEAST_CONTRAST, "{text} on {behind}: {found:.2}");
            }
        }
    }
}

#[test]
fn differences_and_contrasts_are_those_of_the_standards() {
    let (black, white) = (linear("#000000").expect("hex"), linear("#ffffff").expect("hex"));
    assert!((contrast(&black, &white) - 21.0).abs() < 1e-9);
    assert!((difference(&black, &white) - 100.0).abs() < 1e-2);
    assert_eq!(schemes().map(|scheme| scheme.len()), [11, 11]);
}
