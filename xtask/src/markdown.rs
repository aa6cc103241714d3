//! Markdown as far as this project's pages use it: links, anchors of headings, fenced blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A link or an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// From 1.
    pub(crate) line: usize,
    /// Where its target stands in the text.
    pub(crate) place: Range<usize>,
    /// As it is written, with its anchor.
    pub(crate) target: String,
}

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The line of its opening fence, from 1.
    pub(crate) line: usize,
    /// The word after the opening fence.
    pub(crate) language: String,
    /// What is inside.
    pub(crate) text: String,
}

/// All links and images outside code, in order.
pub(crate) fn links(text: &str) -> Vec<Link> {
    let prose = without_code(text);
    let starts = prose.match_indices("](").map(|(at, opening)| at + opening.len());
    starts
        .filter_map(|start| {
            let inside = &prose[start..start + prose[start..].find(')')?];
            // A title may follow the target.
            let target = inside.split_whitespace().next()?;
            let start = start + inside.find(target)?;
            let line = prose[..start].matches('\n').count() + 1;
            Some(Link { line, place: start..start + target.len(), target: target.to_string() })
        })
        .collect()
}

/// The anchors of a page's headings. The second of the same name ends in `-1`.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let prose = without_blocks(text);
    let headings = prose.lines().filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len() && title.starts_with(' ')).then_some(title)
    });
    headings
        .map(|title| {
            let anchor = anchor(title);
            let times = seen.entry(anchor.clone()).or_default();
            *times += 1;
            if *times == 1 { anchor } else { format!("{anchor}-{}", *times - 1) }
        })
        .collect()
}

/// The anchor of a heading: lower-case, spaces as hyphens, no punctuation.
fn anchor(title: &str) -> String {
    let mut shown = title.trim().to_string();
    // Of a link, only its text is shown.
    while let Some((before, after)) = shown.split_once("](") {
        let rest = after.split_once(')').map_or("", |(_, rest)| rest);
        shown = format!("{before}{rest}");
    }
    let kept = shown.chars().flat_map(char::to_lowercase).filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    kept.collect()
}

/// All fenced blocks, in order.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open: Option<(&str, Block)> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, fence(line)) {
            (None, Some(marks)) => {
                let language = line.trim_start().trim_start_matches(marks).trim().to_string();
                open = Some((marks, Block { line: number + 1, language, text: String::new() }));
            }
            (Some((marks, _)), Some(_)) if line.trim() == *marks => {
                found.extend(open.take().map(|(_, block)| block));
            }
            (Some((_, block)), _) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// The marks of a line that opens or closes a block.
fn fence(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let marks = line.len() - line.trim_start_matches('`').len();
    (marks >= 3).then_some(&line[..marks])
}

/// The text with everything inside fenced blocks as spaces; places stay the same.
fn without_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut open: Option<&str> = None;
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches('\n');
        let is_code = open.is_some() || fence(content).is_some();
        match (open, fence(content)) {
            (None, Some(marks)) => open = Some(marks),
            (Some(marks), Some(_)) if content.trim() == marks => open = None,
            _ => {}
        }
        if is_code { blank(&mut out, line) } else { out.push_str(line) }
    }
    out
}

/// The text with fenced blocks and code spans as spaces; places stay the same.
fn without_code(text: &str) -> String {
    let text = without_blocks(text);
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].len() - rest[start..].trim_start_matches('`').len();
        let (marks, after) = (&rest[start..start + ticks], &rest[start + ticks..]);
        out.push_str(&rest[..start]);
        // A span ends within its paragraph.
        let paragraph = &after[..after.find("\n\n").unwrap_or(after.len())];
        let end = paragraph.find(marks).map_or(start + ticks, |end| start + 2 * ticks + end);
        blank(&mut out, &rest[start..end]);
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

/// Adds as many bytes of white space, with the same line ends.
fn blank(out: &mut String, text: &str) {
    out.extend(text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# The page\n\nA [link](a.md#one), an ![image](b.svg \"title\"), a [link over\n\
                        two lines](c.md), `[no](link)`.\n\n```sh\n[nor](this) # no heading\n```\n\n\
                        ## One `two`, [three](d.md)\n\n## The page\n";

    #[test]
    fn links_outside_code_are_found_where_they_stand() {
        let found = links(PAGE);
        let targets: Vec<(usize, &str)> =
            found.iter().map(|link| (link.line, link.target.as_str())).collect();
        assert_eq!(targets, [(3, "a.md#one"), (3, "b.svg"), (4, "c.md"), (10, "d.md")]);
        assert!(found.iter().all(|link| PAGE[link.place.clone()] == link.target));
    }

    #[test]
    fn headings_have_the_anchors_that_readers_get() {
        let expected = ["one-two-three", "the-page", "the-page-1"];
        assert_eq!(anchors(PAGE), expected.map(String::from).into());
        assert_eq!(anchor(" `records.jsonl`"), "recordsjsonl");
    }

    #[test]
    fn blocks_have_a_language_and_keep_shorter_fences_inside() {
        let page = "````md\n```sh\nls\n```\n````\n\n```toml\na = 1\n```\n";
        let block = |line, language: &str, text: &str| Block {
            line,
            language: language.to_string(),
            text: text.to_string(),
        };
        assert_eq!(blocks(page), [block(1, "md", "```sh\nls\n```\n"), block(7, "toml", "a = 1\n")]);
    }
}
