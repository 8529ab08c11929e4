//! Chromium over the DevTools protocol: JSON messages on a web socket. https://chromedevtools.github.io/devtools-protocol/

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

const BROWSERS: [&str; 2] = ["chromium", "google-chrome-stable"];
const PATIENCE: Duration = Duration::from_secs(60);
/// Width and height of the window in pixels.
const SIZE: (u32, u32) = (1300, 1200);

/// The only tab of a browser of its own, which ends with it.
pub struct Tab {
    browser: Child,
    socket: WebSocket<TcpStream>,
    session: Option<String>,
    calls: u64,
    /// What the page logged, and its exceptions.
    errors: Vec<String>,
    _profile: TempDir,
}

impl Tab {
    pub fn open(url: &str) -> Tab {
        let profile = TempDir::new().unwrap();
        let (browser, address) = launch(&profile);
        let host = address.strip_prefix("ws://").unwrap().split('/').next().unwrap();
        let stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(address.as_str(), stream).unwrap();
        let mut tab = Tab { browser, socket, session: None, calls: 0, errors: vec![], _profile: profile };
        let target = tab.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = tab.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        tab.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Log.enable", "Runtime.enable", "Page.enable"] {
            tab.call(domain, json!({}));
        }
        let navigated = tab.call("Page.navigate", json!({ "url": url }));
        assert!(navigated["errorText"].is_null(), "{url}: {navigated}");
        tab
    }

    /// Calls a method and waits for its result; events in between are looked at.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            call["sessionId"] = json!(session);
        }
        self.socket.send(Message::text(call.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap_or_else(|e| panic!("{method}: {e}")) else { continue };
            let message: Value = serde_json::from_str(&text).unwrap();
            if message["id"] == json!(self.calls) {
                assert!(message["error"].is_null(), "{call}: {message}");
                return message["result"].clone();
            }
            self.listen(&message);
        }
    }

    fn listen(&mut self, event: &Value) {
        let p = &event["params"];
        let what = match event["method"].as_str() {
            Some("Log.entryAdded") => &p["entry"]["text"],
            Some("Runtime.exceptionThrown") => &p["exceptionDetails"],
            Some("Runtime.consoleAPICalled") => &p["args"],
            _ => return,
        };
        self.errors.push(what.to_string());
    }

    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// The value of a JavaScript expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let found = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// A mouse event at a place in the window, with the left button unless it is the wheel's, by `wheel` pixels.
    pub fn mouse(&mut self, kind: &str, (x, y): (f64, f64), wheel: f64) {
        let (button, buttons) = if kind == "mouseWheel" { ("none", 0) } else { ("left", 1) };
        let event = json!({
            "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1, "deltaX": 0,
            "deltaY": wheel,
        });
        self.call("Input.dispatchMouseEvent", event);
    }

    /// The window as a PNG file.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let found = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        data_encoding::BASE64.decode(found["data"].as_str().unwrap().as_bytes()).unwrap()
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}

/// Starts a browser; its process, and the address of its web socket.
fn launch(profile: &TempDir) -> (Child, String) {
    let chosen = std::env::var("CHROME").ok();
    let names = chosen.iter().map(String::as_str).chain(BROWSERS);
    let start = |name: &str| {
        Command::new(name)
            // Root has no sandbox, and the page is ours.
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--window-size={},{}", SIZE.0, SIZE.1))
            .stderr(Stdio::piped())
            .spawn()
            .ok()
    };
    let browser = names.into_iter().find_map(start);
    let mut browser =
        browser.unwrap_or_else(|| panic!("no Chromium on PATH or in CHROME; run: scripts/setup --browser"));
    let mut lines = BufReader::new(browser.stderr.take().unwrap()).lines();
    let mut said = String::new();
    let address = loop {
        let Some(Ok(line)) = lines.next() else { panic!("Chromium ended before it listened: {said}") };
        if let Some(address) = line.strip_prefix("DevTools listening on ") {
            break address.to_owned();
        }
        said.push_str(&line);
    };
    // It would stop at a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    (browser, address)
}
