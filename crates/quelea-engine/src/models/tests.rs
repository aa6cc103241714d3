//! Parameter counts, as in the papers.

use super::*;

const GREY: ImageSpec = ImageSpec { channels: 1, height: 28, width: 28, classes: 10 };

#[test]
fn parameter_counts_are_those_of_the_papers() {
    assert_eq!(resnet20(10).parameters.len(), 269_722);
    assert_eq!(resnet18(10).parameters.len(), 11_173_962);
    assert_eq!(resnet50(ResNetStem::ImageNet, 1000).parameters.len(), 25_557_032);
    assert_eq!(resnet50(ResNetStem::Cifar, 10).parameters.len(), 23_520_842);
    assert_eq!(vgg16(VggHead::Cifar, 10).parameters.len(), 14_728_266);
    assert_eq!(vgg16(VggHead::ImageNet, 1000).parameters.len(), 138_365_992);
}

#[test]
fn small_networks_are_small() {
    assert_eq!(mlp(GREY, &[128]).parameters.len(), 784 * 128 + 128 + 1290);
    assert_eq!(cnn(GREY).parameters.len(), 320 + 18_496 + 3136 * 128 + 128 + 1290);
}

#[test]
fn base_transformer_has_the_size_of_its_paper() {
    let base = TransformerSize {
        vocabulary: 37_000,
        width: 512,
        layers: 6,
        heads: 8,
        inner: 2048,
        dropout: 0.1,
        shared: true,
    };
    let (_, parameters) = Transformer::new(base);
    // The paper says 65 million.
    assert_eq!(parameters.len(), 63_082_496);
    let (_, apart) = Transformer::new(TransformerSize { shared: false, ..base });
    assert_eq!(apart.len(), 63_082_496 + 2 * 37_000 * 512 + 37_000);
}

#[test]
fn small_gpt2_has_the_size_of_its_paper() {
    let size = LanguageSize {
        vocabulary: 50_257,
        context: 1024,
        width: 768,
        layers: 12,
        heads: 12,
        dropout: 0.1,
    };
    assert_eq!(Language::new(size).1.len(), 124_439_808);
}
