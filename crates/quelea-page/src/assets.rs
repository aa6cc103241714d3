//! The files of the page, inside the binary.

/// One file.
pub(crate) struct Asset {
    path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! asset {
    ($path:literal, $file:literal, $content_type:expr) => {
        Asset {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../assets/", $file)),
        }
    };
}

const ASSETS: &[Asset] = &[
    asset!("/", "index.html", HTML),
    asset!("/style.css", "style.css", CSS),
    asset!("/icon.svg", "icon.svg", "image/svg+xml"),
    asset!("/main.js", "main.js", SCRIPT),
    asset!("/api.js", "api.js", SCRIPT),
    asset!("/format.js", "format.js", SCRIPT),
    asset!("/chart.js", "chart.js", SCRIPT),
    asset!("/topology.js", "topology.js", SCRIPT),
    asset!("/panels.js", "panels.js", SCRIPT),
    asset!("/runs.js", "runs.js", SCRIPT),
];

/// The file at this path.
pub(crate) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_loaded_from_elsewhere_and_no_script_stands_in_the_page() {
        for asset in ASSETS {
            let text = std::str::from_utf8(asset.bytes).expect("all files are text");
            let allowed = text.replace("http://www.w3.org/2000/svg", "");
            for elsewhere in ["http://", "https://", "//cdn", "eval(", "innerHTML"] {
                assert!(!allowed.contains(elsewhere), "{}: {elsewhere}", asset.path);
            }
            if asset.content_type == HTML {
                assert!(!text.contains("<script>") && !text.contains("style="), "{}", asset.path);
                assert!(!text.contains("onclick"), "{}", asset.path);
            }
        }
    }
}
