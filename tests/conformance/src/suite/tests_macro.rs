//! The macro that makes a test of every property.

/// Makes one `#[test]` per property of an algorithm: `conformance::suite!(&MY_ENTRY)`.
///
/// With settings: `conformance::suite!(Suite::of(&MY_ENTRY).with_keys("beta = 0.9\n"))`.
#[macro_export]
macro_rules! suite {
    ($entry:expr) => {
        mod conformance_suite {
            #[allow(unused_imports, reason = "the entry may be given by its full path")]
            use super::*;

            fn suite() -> $crate::suite::Suite {
                ::core::convert::Into::into($entry)
            }

            #[test]
            fn is_described() {
                suite().is_described();
            }

            #[test]
            fn learns_equal_and_unequal_data() {
                suite().learns_equal_and_unequal_data();
            }

            #[test]
            fn keeps_the_mean_if_it_says_so() {
                suite().keeps_the_mean_if_it_says_so();
            }

            #[test]
            fn gives_the_same_run_every_time() {
                suite().gives_the_same_run_every_time();
            }

            #[test]
            fn agrees_in_every_driver() {
                suite().agrees_in_every_driver();
            }

            #[test]
            fn sends_the_bytes_of_its_traffic() {
                suite().sends_the_bytes_of_its_traffic();
            }

            #[test]
            fn takes_the_time_of_its_traffic() {
                suite().takes_the_time_of_its_traffic();
            }

            #[test]
            fn does_not_wait_for_a_slow_worker_unless_it_says_so() {
                suite().does_not_wait_for_a_slow_worker_unless_it_says_so();
            }

            #[test]
            fn survives_delays_and_lost_workers() {
                suite().survives_delays_and_lost_workers();
            }

            #[test]
            fn resumes_from_every_checkpoint() {
                suite().resumes_from_every_checkpoint();
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::suite::PROPERTIES;

    #[test]
    fn the_macro_makes_a_test_of_every_property() {
        let source = include_str!("tests_macro.rs").split("mod tests").next().expect("the macro");
        for property in PROPERTIES {
            assert!(source.contains(&format!("suite().{}();", property.name)), "{}", property.name);
        }
        assert_eq!(source.matches("#[test]\n").count(), PROPERTIES.len());
    }
}
