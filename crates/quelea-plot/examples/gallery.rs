//! Every kind of chart, as files to look at: `cargo run -p quelea-plot --example gallery -- DIR`.

use std::path::PathBuf;

use quelea_plot::{Axis, BarChart, BarSeries, Chart, LineChart, LineSeries};

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| ".".to_string()));
    std::fs::create_dir_all(&folder)?;
    for (name, chart) in
        [("lines", lines()), ("log", log()), ("bars", bars()), ("stacked", stacked())]
    {
        std::fs::write(folder.join(format!("{name}.svg")), chart.svg())?;
        std::fs::write(folder.join(format!("{name}.png")), chart.png())?;
    }
    Ok(())
}

fn lines() -> Chart {
    let curve =
        |rate: f64| (0..200).map(|k| (f64::from(k), (-rate * f64::from(k)).exp())).collect();
    Chart::Lines(LineChart {
        title: "Loss against steps".into(),
        x: Axis::linear("steps"),
        y: Axis::linear("loss"),
        series: vec![
            LineSeries::line("allreduce", curve(0.05)),
            LineSeries::line("d-psgd on a ring", curve(0.03)),
            LineSeries::dashes("what the formula says", curve(0.02)),
            LineSeries::points("published", vec![(50.0, 0.3), (100.0, 0.1), (150.0, 0.02)]),
        ],
    })
}

fn log() -> Chart {
    let power = |exponent: f64| {
        (0..9).map(|k| (f64::from(1 << k), 1e-3 * f64::from(1 << k).powf(exponent))).collect()
    };
    Chart::Lines(LineChart {
        title: "Transient iterations".into(),
        x: Axis::log("workers"),
        y: Axis::log("iterations"),
        series: vec![
            LineSeries::line("ring: n⁷", power(7.0)),
            LineSeries::line("exponential: n³·log²n", power(3.2)),
        ],
    })
}

fn bars() -> Chart {
    Chart::Bars(BarChart {
        title: "Speed-up of 8 workers, one of them slower".into(),
        y: Axis::linear("speed-up"),
        groups: ["×1", "×2", "×10", "×100"].map(String::from).to_vec(),
        series: vec![
            BarSeries::new("aladdin", [6.7, 6.32, 5.96, 5.87].map(Some).to_vec())
                .marked([6.7, 6.3, 5.95, 5.87].map(Some).to_vec()),
            BarSeries::new("allreduce", [5.4, 3.22, 0.76, 0.08].map(Some).to_vec())
                .marked([5.4, 3.22, 0.71, 0.08].map(Some).to_vec()),
            BarSeries::new("sgp", vec![Some(6.0), None, Some(5.34), Some(1.8)]),
        ],
        stacked: false,
    })
}

fn stacked() -> Chart {
    Chart::Bars(BarChart {
        title: "Where the time goes".into(),
        y: Axis::linear("share of the time, %").within(0.0, 100.0),
        groups: (1..=8).map(|n| format!("{n} workers")).collect(),
        series: vec![
            BarSeries::new("computing", (1..=8).map(|n| Some(60.0 - 5.0 * f64::from(n))).collect()),
            BarSeries::new(
                "communication",
                (1..=8).map(|n| Some(30.0 + 5.0 * f64::from(n))).collect(),
            ),
            BarSeries::new("waiting", vec![Some(10.0); 8]),
        ],
        stacked: true,
    })
}
