// Search on files: browsers start no workers there, so the worker's script runs in a frame of the page.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inner = new Promise(resolve => {
        const script = inner.document.createElement("script")
        script.src = url
        script.onload = () => resolve(inner)
        inner.document.body.append(script)
      })
    }
    postMessage(data) {
      this.inner.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
    }
  }
