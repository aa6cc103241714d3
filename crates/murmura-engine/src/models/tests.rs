//! Parameter counts, as in the papers.

use super::*;

const GREY: Images = Images { channels: 1, height: 28, width: 28, classes: 10 };

#[test]
fn parameter_counts_are_those_of_the_papers() {
    assert_eq!(resnet20(10).parameters.len(), 269_722);
    assert_eq!(resnet18(10).parameters.len(), 11_173_962);
    assert_eq!(resnet50(1000).parameters.len(), 25_557_032);
    assert_eq!(vgg16(VggHead::Cifar, 10).parameters.len(), 14_728_266);
    assert_eq!(vgg16(VggHead::ImageNet, 1000).parameters.len(), 138_365_992);
}

#[test]
fn small_networks_are_small() {
    assert_eq!(mlp(GREY, &[128]).parameters.len(), 784 * 128 + 128 + 1290);
    assert_eq!(cnn(GREY).parameters.len(), 320 + 18_496 + 3136 * 128 + 128 + 1290);
}
