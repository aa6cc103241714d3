//! Real data sets, where they lie beside the repository.

mod support;

use quelea_data::images::{Crop, ImageShape, Images, Normalisation, cifar10, idx};
use support::shared;

fn counts(images: &dyn Images) -> Vec<usize> {
    let mut counts = vec![0; images.classes().len()];
    images.labels().iter().for_each(|label| counts[*label as usize] += 1);
    counts
}

fn assert_near(measured: &Normalisation, mean: &[f32], deviation: &[f32]) {
    let pairs = measured.mean.iter().zip(mean).chain(measured.deviation.iter().zip(deviation));
    assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-4), "{measured:?}");
}

#[test]
fn fashion_mnist_has_its_known_size_balance_and_mean() {
    let Some(folder) = shared("fashion-mnist") else { return };
    let split = idx(&folder).expect("whole");
    assert_eq!(split.train.shape(), ImageShape { channels: 1, height: 28, width: 28 });
    assert_eq!(counts(&*split.train), [6000; 10]);
    assert_eq!(counts(&*split.test), [1000; 10]);
    // As published with many implementations.
    assert_near(split.train.normalisation(), &[0.2860], &[0.3530]);
    assert_eq!(split.test.classes()[9], "ankle boot");
    // The first training image is an ankle boot, the first test image too.
    assert_eq!((split.train.label(0), split.test.label(0)), (9, 9));
}

#[test]
fn cifar10_has_its_known_size_balance_and_mean() {
    let Some(folder) = shared("cifar10") else { return };
    let split = cifar10(&folder).expect("whole");
    assert_eq!(split.train.shape(), ImageShape { channels: 3, height: 32, width: 32 });
    assert_eq!(counts(&*split.train), [5000; 10]);
    assert_eq!(counts(&*split.test), [1000; 10]);
    let (mean, deviation) = ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]);
    assert_near(split.train.normalisation(), &mean, &deviation);
    // The first training image is a frog whose first red, green and blue pixels are known.
    let mut pixels = vec![0; 3072];
    split.train.pixels(0, Crop::Centre, &mut pixels).expect("in memory");
    assert_eq!(split.train.classes()[split.train.label(0) as usize], "frog");
    assert_eq!((pixels[0], pixels[1024], pixels[2048]), (59, 62, 63));
}
